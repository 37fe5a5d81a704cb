"""
A recipe as it is read: a base whose keys it has, types, and whatever is malformed, which ends in one short line that
names the file; valid YAML is read as YAML means it.
"""

import pytest
import yaml
from any_content import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.launch.command_line import first_look
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_check import check_recipe, fits, read_recipe
from trl_prorl.train import TaskArguments, main


HINTS = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).hints()


@pytest.mark.parametrize(
    "value, hint, right",
    [
        (1, int, True),
        (1.0, int, False),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (None, float, False),
        (None, float | None, True),
        ("1e-4", float, True),  # YAML reads it as text; the parser converts it
        ("many", int, True),  # the parser complains
        ([1], int, False),
        (["a"], list[str], True),
        ("all-linear", list[str], True),
        (["a"], list[str] | None, True),
        ({"a": 1}, dict | str | None, True),
        ([1], dict | str | None, False),
        (False, str, False),  # a bare `off` in YAML
        (1, bool, False),
    ],
)
def test_fits(value, hint, right):
    assert fits(value, hint) is right


@pytest.fixture
def recipe(tmp_path):
    def write(text, name="arms/arm.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_keys_of_the_arm_win_and_null_unsets(recipe):
    recipe("beta: 1.0\nmax_steps: 5\nkl_target: 0.1\ntask: sorting\n", "base.yaml")
    arm = recipe("base: ../base.yaml\nmax_steps: 7\nkl_target: null\noutput_dir: runs/x\n")
    check_recipe(arm, HINTS)
    assert read_recipe(arm) == {"beta": 1.0, "max_steps": 7, "task": "sorting", "output_dir": "runs/x"}
    assert read_recipe(recipe("kl_target: null\n")) == {"kl_target": None}  # without a base


def test_the_base_is_found_from_any_directory(recipe, tmp_path, monkeypatch):
    recipe("beta: 1.0\n", "base.yaml")
    arm = recipe("base: ../base.yaml\n")
    monkeypatch.chdir(arm.parent.parent.parent)
    assert read_recipe(arm.relative_to(arm.parent.parent.parent)) == {"beta": 1.0}


@pytest.mark.parametrize(
    "base, arm, message",
    [
        (None, "base: base.yaml\n", r"arm.yaml: base='base.yaml': there is no such file, .*base.yaml\.$"),
        ("base: arm.yaml\n", "base: base.yaml\n", "base='base.yaml' has a base of its own, 'arm.yaml'; one level"),
        ("beta: 1\n", "base: 3\n", "base=3 is a whole number, and base takes the path of a recipe"),
        ("beta: 1\n", "base: base.yaml\nbeat: 2\n", r"arm.yaml: unknown key 'beat' \(did you mean 'beta'\?\)"),
        ("beat: 1\n", "base: base.yaml\nbeta: 2\n", r"base.yaml: unknown key 'beat' \(did you mean 'beta'\?\)"),
        ("beta: 1\n", "bsae: base.yaml\n", r"unknown key 'bsae' \(did you mean 'base'\?\)"),
        ("beta: 1\n", "base: base.yaml\nmax_steps: null\n", "max_steps=None is empty"),
        ("beta: 1\n", "base: base.yaml\nbeta: [1]\n", r"arm.yaml: beta=\[1\] is a list"),
        ("- 1\n", "base: base.yaml\n", "base='base.yaml' holds a list"),
        ("a: b: c\n", "base: base.yaml\n", "base='base.yaml' is not YAML"),
        ("trust_remote_code: true\n", "base: base.yaml\n", "base.yaml: trust_remote_code=True"),
        ("env: {PYTHONSTARTUP: x}\n", "base: base.yaml\n", "base.yaml: env sets PYTHONSTARTUP"),
    ],
)
def test_what_is_wrong_is_said_with_its_file(recipe, base, arm, message):
    if base is not None:
        recipe(base, "arms/base.yaml")
    with pytest.raises(ValueError, match=message) as caught:
        check_recipe(recipe(arm), HINTS)
    assert "\n" not in str(caught.value).split(" is not YAML")[0]


def test_a_missing_recipe_is_named_once(tmp_path):
    with pytest.raises(ValueError, match=r"^--config \S*none.yaml: there is no such file\.$"):
        read_recipe(tmp_path / "none.yaml")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
LISTS = ", ".join(line.partition(": ")[2] for line in LAUGHS.splitlines())


MALFORMED = [
    ("env: [OMP_NUM_THREADS]\n", "env=['OMP_NUM_THREADS'] is a list, and env takes a mapping"),
    ("env: OMP_NUM_THREADS=1\n", "env='OMP_NUM_THREADS=1' is text, and env takes a mapping"),
    ("env: {OMP_NUM_THREADS: null}\n", "env: OMP_NUM_THREADS=None is empty"),
    ("env: {WANDB_NAME: [a]}\n", "env: WANDB_NAME=['a'] is a list"),
    ('env: {WANDB_NAME: "a\\0"}\n', "env: WANDB_NAME='a\\x00'"),
    ("? [beta]\n: 1\n", "a key is a list or a mapping"),
    ("lr_scheduler_kwargs: {[a]: 1}\n", "a key is a list or a mapping"),
    ("beta: " + "[" * 3000 + "]" * 3000, "is nested too deeply"),
    ("lr_scheduler_kwargs: {a: " + "[" * 60 + "]" * 60 + "}", "too large, or holds itself"),
    (LAUGHS.replace("i: &i", "max_steps:"), "unknown key 'a'"),
    (
        f"lr_scheduler_kwargs: {{{LAUGHS.replace(chr(10), ', ')}}}",
        "lr_scheduler_kwargs is a mapping that is too large",
    ),
    (f"max_steps: [{LISTS}]", "max_steps is a list that is too large"),
    ("lr_scheduler_kwargs: &a {b: *a}\n", "too large, or holds itself"),
    (b"output_dir: caf\xe9\n", "arm.yaml' is no text (invalid"),
    (f"max_steps: 1{'0' * 400}\n", "is a number that is too large"),
    (f"max_steps: 1{'0' * 5000}\n", "is not YAML: Exceeds the limit"),
    (f"max_steps: 0x1{'0' * 5000}\n", "max_steps=a number of thousands of digits is a number"),
    ("run_name: 2026-13-45\n", "is not YAML: month must be in 1..12"),
    ("beta: !!int x\n", "is not YAML: invalid literal"),
    ("beta: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
    ("? " + "x" * 10_000 + "\n: 1\n", "unknown key 'xxxx"),
    (f"max_steps: [{'x' * 10_000}]\n", "max_steps=['xxxx"),
    (f"base: {'x' * 10_000}\n", "there is no such file"),
    ("base: [a]\n", "base=['a'] is a list"),
    ("1: 2\n", "unknown key 1"),
    ("<<: text\n", "expected a mapping or list of mappings for merging"),
    ("", "holds nothing; a recipe is a mapping"),
    ("generation_kwargs: '{bad'\n", "generation_kwargs='{bad' is not a JSON object"),
    (f"generation_kwargs: '{'{' + chr(34) + 'a' + chr(34) + ':'}{'[' * 9999}'\n", "is not a JSON object"),
    ("lr_scheduler_kwargs: {a: 1, 'a': 2}\n", "the key 'a' is given twice (line 1, column 29)"),
]


@pytest.mark.parametrize("content, said", MALFORMED, ids=[said for _, said in MALFORMED])
def test_it_is_told_in_one_short_line(tmp_path, capsys, content, said):
    path = tmp_path / "arm.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SystemExit) as ended:
        main(None, ["--config", str(path)])
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert said in err and str(path) in err and len(err) - len(str(path)) <= 508


def test_merge_keys_are_valid_yaml(tmp_path):
    text = (
        "<<: [{beta: 1.0, max_steps: 3}, {beta: 2.0, num_iterations: 2}]\n"
        "max_steps: 5\n"
        "lr_scheduler_kwargs: &a {num_cycles: 1, power: 2}\n"
        "activation_checkpointing_kwargs: &b {<<: *a, power: 3}\n"
        "generation_kwargs: {<<: *b, penalty_alpha: 1}\n"
    )
    (tmp_path / "arm.yaml").write_text(text)
    check_recipe(tmp_path / "arm.yaml", HINTS)
    assert read_recipe(tmp_path / "arm.yaml") == yaml.safe_load(text)


@pytest.mark.parametrize("key", ["pack_groups", "compact_generation"])
@pytest.mark.parametrize(("written", "read"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")])
def test_a_bare_on(tmp_path, key, written, read):
    (tmp_path / "arm.yaml").write_text(f"{key}: {written}\nuse_cpu: true\nbf16: false\n")
    argv = first_look(None, ["--config", str(tmp_path / "arm.yaml")])
    _, args, _ = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(argv)
    assert getattr(args, key) == read


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.dates(), st.text(max_size=4), st.binary(max_size=3)
)
SCALARS |= st.sampled_from([10**400, -(2**63), 1e308, "{", "{}", '{"a": 1}', "on", "é" * 600, "\0", "1e5", "<<", "="])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=6
)
KEYS = st.sampled_from([*sorted(HINTS), "env", "base", "lr", "torch_dtype"]) | SCALARS
SIGNS = "beta: |env: |&a |*a|!!int |!!set |!!binary |!!timestamp |!!float |<<: |? |: |- |{|}|[|]|\n|x|1|'".split("|")
RECIPES = st.dictionaries(KEYS, VALUES, max_size=3)
TEXTS = st.one_of(
    RECIPES.map(lambda recipe: yaml.safe_dump(recipe, allow_unicode=True).encode()),
    RECIPES.map(lambda recipe: yaml.safe_dump(recipe, default_flow_style=True).encode()),
    st.text("{}[]:,&*!?|>-#'\"%@`<= \n\tab1.", max_size=40).map(str.encode),
    st.lists(st.sampled_from(SIGNS), max_size=12).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=20),
)


@given(TEXTS)
@settings(max_examples=150, **QUICK)
def test_no_content_ends_in_a_traceback(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "arm.yaml"
    path.write_bytes(content)
    try:
        check_recipe(path, HINTS)
        read_recipe(path)
    except ValueError as error:
        assert len(str(error)) - len(str(path)) <= 500


@given(st.dictionaries(st.sampled_from(sorted(HINTS)), VALUES, min_size=1, max_size=3))
@settings(max_examples=30, **QUICK)
@pytest.mark.filterwarnings("ignore")
def test_no_value_ends_in_a_traceback_of_the_parser(tmp_path_factory, recipe):
    path = tmp_path_factory.getbasetemp() / "arm.yaml"
    path.write_text(yaml.safe_dump({"use_cpu": True, "bf16": False, **recipe}))
    try:
        RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(["--config", str(path)])
    except ValueError as error:
        assert len(str(error)) - len(str(path)) <= 500
