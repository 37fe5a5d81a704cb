"""
A recipe as it is read: a base whose keys it has, types, and whatever is malformed, which ends in one short line that
names the file; valid YAML is read as YAML means it. And a recipe cannot make the machine run code that is not
installed on it, however it spells the wish; the command line, which users type themselves, may ask for the same.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from any_content import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.launch import recipe_check, recipe_yaml
from trl_prorl.launch.command_line import check_arguments, parse
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_check import INIT, SWITCHES, check_recipe, json_mapping
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.launch.value_types import fits, takes_mapping
from trl_prorl.train import TaskArguments, main


PARSER = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
HINTS = PARSER.hints()


# YAML reads 1e-4 as text, which the parser converts; of `many` it would complain. A bare `off` is false.
FIT = [
    (1, int),
    (1, float),
    (None, float | None),
    ("1e-4", float),
    ("YES", bool),
    ("many", int | str),
    (["a"], list[str]),
    ("all-linear", list[str]),
    (["a"], list[str] | None),
    ({"a": 1}, dict | str | None),
]
OTHERS = [
    (1.0, int),
    ("many", int),
    ("1.5", int | None),
    ("many", float | None),
    ("many", bool),
    ("many", list[float]),
    (True, int),
    (True, float),
    (None, float),
    ([1], int),
    ([1], dict | str | None),
    (False, str),
    (1, bool),
]


@pytest.mark.parametrize("value, hint, right", [(*case, True) for case in FIT] + [(*case, False) for case in OTHERS])
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


def test_keys_of_the_arm_win_and_null_unsets_from_any_directory(recipe, tmp_path, monkeypatch):
    recipe("beta: 1.0\nmax_steps: 5\nkl_target: 0.1\ntask: sorting\n", "base.yaml")
    arm = recipe("base: ../base.yaml\nmax_steps: 7\nkl_target: null\noutput_dir: runs/x\n")
    check_recipe(arm, HINTS)
    assert read_recipe(arm) == {"beta": 1.0, "max_steps": 7, "task": "sorting", "output_dir": "runs/x"}
    monkeypatch.chdir(tmp_path)
    assert read_recipe(arm.relative_to(tmp_path)) == read_recipe(arm)
    assert read_recipe(recipe("kl_target: null\n")) == {"kl_target": None}  # without a base


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


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = LAUGHS.replace("[x, x, x, x, x, x, x, x, x]", "{x: 1, y: 1}").replace(" [*", " {<<: [*").replace("]", "]}")
LISTS = ", ".join(line.partition(": ")[2] for line in LAUGHS.splitlines())


MALFORMED = [
    ("env: [OMP_NUM_THREADS]\n", "env=['OMP_NUM_THREADS'] is a list, and env takes a mapping"),
    ("env: OMP_NUM_THREADS=1\n", "env='OMP_NUM_THREADS=1' is text, and env takes a mapping"),
    ("env: {OMP_NUM_THREADS: null}\n", "env: OMP_NUM_THREADS=None is empty"),
    ("env: {WANDB_NAME: [a]}\n", "env: WANDB_NAME=['a'] is a list"),
    ('env: {WANDB_NAME: "a\\0"}\n', "env: WANDB_NAME='a\\x00'"),
    ("? [beta]\n: 1\n", "a key is a list or a mapping"),
    ("lr_scheduler_kwargs: {[a]: 1}\n", "a key is a list or a mapping"),
    ("beta: " + "[" * 3000 + "]" * 3000, "is not YAML: "),  # of libyaml, or of Python
    ("lr_scheduler_kwargs: {a: " + "[" * 60 + "]" * 60 + "}", "too large, or holds itself"),
    (LAUGHS.replace("i: &i", "max_steps:"), "aliases repeat more than 10,000 values"),
    (f"lr_scheduler_kwargs: {{{LAUGHS.replace(chr(10), ', ')}}}", "aliases repeat more than 10,000 values"),
    (f"max_steps: [{LISTS}]", "aliases repeat more than 10,000 values"),
    (MERGES, "aliases repeat more than 10,000 values"),
    (f"env: {{a: &a {'x' * 100_000}, b: [{', '.join(['*a'] * 9)}]}}\n", "aliases repeat more than 10,000 values"),
    ("lr_scheduler_kwargs: &a {b: *a}\n", "the anchor 'a' holds itself"),
    (f"beta: 1 #{' ' * 2**20}\n", "bytes, and at most 1,048,576 are read"),
    (b"output_dir: caf\xe9\n", "arm.yaml' is no text (invalid"),
    (f"max_steps: 1{'0' * 400}\n", "is a number that is too large"),
    (f"max_steps: 1{'0' * 5000}\n", "is not YAML: Exceeds the limit"),
    (f"max_steps: 0x1{'0' * 5000}\n", "is not YAML: Exceeds the limit"),
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
    assert ended.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert str(path) in err
    assert len(err) - len(str(path)) <= 508


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


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "arm.yaml").write_bytes(b"\xef\xbb\xbfbeta: 1.0\nmax_steps: 3\n")
    assert check_recipe(tmp_path / "arm.yaml", HINTS) == {"beta": 1.0, "max_steps": 3}


def test_options_of_a_task_that_are_nested_too_deeply_are_refused():
    with pytest.raises(ValueError, match="^task_options='.*' is not JSON: it is nested too deeply"):
        TaskArguments(task_options='{"a":' * 50_000)


def test_a_command_line_reads_and_checks_each_file_of_its_recipe_once(recipe, monkeypatch):
    recipe("task: sorting\nuse_cpu: true\nbf16: false\n", "base.yaml")
    arm = recipe("base: ../base.yaml\nbeta: 1.0\n")
    read = Counter()
    checked = Counter()

    def counted(function, counter):
        def count(path, *more, **named):
            counter[Path(path).name] += 1
            return function(path, *more, **named)

        return count

    monkeypatch.setattr(recipe_yaml, "read_text", counted(recipe_yaml.read_text, read))
    monkeypatch.setattr(recipe_check, "check_env", counted(recipe_check.check_env, checked))
    task_args, args, _ = parse(check_arguments(None, ["--config", str(arm)]))
    assert (task_args.task, args.beta) == ("sorting", 1.0)
    assert read == checked == {"base.yaml": 1, "arm.yaml": 1}


def test_a_wrong_value_of_another_library_s_key_is_refused_at_the_first_look(recipe, capsys):
    with pytest.raises(SystemExit):
        check_arguments(None, ["--config", str(recipe("learning_rate: [1]\nbf16: false\n"))])
    assert "learning_rate=[1] is a list, and learning_rate takes a number." in capsys.readouterr().err


@pytest.mark.parametrize("key", ["pack_groups", "compact_generation"])
@pytest.mark.parametrize(("written", "read"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")])
def test_a_bare_on(tmp_path, key, written, read):
    (tmp_path / "arm.yaml").write_text(f"{key}: {written}\nuse_cpu: true\nbf16: false\n")
    arguments = check_arguments(None, ["--config", str(tmp_path / "arm.yaml")])
    _, args, _ = PARSER.parse_args_and_config(arguments.argv)
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
        PARSER.parse_args_and_config(["--config", str(path)])
    except ValueError as error:
        assert len(str(error)) - len(str(path)) <= 500


# ------------------------------------------------------------------------------------------ code in a recipe


MAPPINGS = sorted(name for name, hint in HINTS.items() if takes_mapping(hint))
JSON_TEXTS = sorted({"task_options", *ProRLConfig._VALID_DICT_FIELDS})  # text of these is read as JSON
KERNELS = [
    "owner/kernel",
    "owner/kernel@v1:forward",
    "paged|owner/kernel",
    {"": "owner/kernel"},
    {"text_config": "owner/kernel"},
    ["owner/kernel"],
    {"": {"": "a/b"}},
]
# What `model_init_kwargs` may not hold; the last key is the culprit's.
FORBIDDEN = [{"trust_remote_code": value} for value in (True, "true", "false", 1, "", [True])]
FORBIDDEN += [{"attn_implementation": value} for value in KERNELS]
FORBIDDEN += [{"use_kernels": True}, {"kernel_config": {"RMSNorm": "owner/kernel:RMSNorm"}}, {"kernel_config": "x"}]
FORBIDDEN += [{"allow_all_kernels": True}, {"experts_implementation": "owner/kernel"}, {"code_revision": "main"}]
FORBIDDEN += [{"quantization_config": {"quant_method": "mxfp4"}}, {"use_safetensors": False}, {"weights_only": False}]
FORBIDDEN += [{"weights_only": None}, {"adapter_kwargs": {"path": "x"}}, {"config": {"auto_map": {}}}]
FORBIDDEN += [{"generation_config": "x"}, {"gguf_file": "x"}, {"architecture": "x"}, {"token": "x"}, {1: 2}]


def flow(value):
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()


# Ways to write `key: value` in YAML that may reach the check as something else.
NOTATIONS = {
    "block": lambda key, value: yaml.safe_dump({key: value}),
    "quoted": lambda key, value: yaml.safe_dump({key: value}, default_style='"'),
    "tagged": lambda key, value: f"? !!str {key}\n: !!map {flow(value)}\n",
    "merged": lambda key, value: f"{key}:\n  <<: {flow(value)}\n",
    "merged as a whole": lambda key, value: f"<<: {{{key}: {flow(value)}}}\n",
    "anchored": lambda key, value: f"{key}: &x {flow(value)}\n",
    "by an alias": lambda key, value: f"{key}: {{<<: [&x {flow(value)}, *x]}}\n",
    "text": lambda key, value: yaml.safe_dump({key: json.dumps(value)}),
    "escaped text": lambda key, value: yaml.safe_dump(
        {key: json.dumps(value).replace("_", "\\u005f").replace("/", "\\/")}
    ),
}
LAYERS = ("recipe", "base")


def line_that_refuses(folder, text, layer):
    """The line that refuses a recipe of this text, or one that has it as its base."""
    (folder / "arm.yaml").write_text(text if layer == "recipe" else "base: base.yaml\nmax_steps: 1\n")
    (folder / "base.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        check_recipe(folder / "arm.yaml", HINTS)
    line = str(error.value)
    file = folder / ("arm.yaml" if layer == "recipe" else "base.yaml")
    assert line.startswith(f"{file}: ")
    assert "\n" not in line
    assert len(line) - len(str(file)) <= 500
    return line


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_no_notation_hides_it(tmp_path, notation, layer):
    for value in FORBIDDEN:
        line = line_that_refuses(tmp_path, NOTATIONS[notation]("model_init_kwargs", value), layer)
        assert f": model_init_kwargs: {next(iter(value))}=" in line
        assert "--model_init_kwargs on the command line" in line


@settings(max_examples=150, **QUICK)
@given(
    st.sampled_from(MAPPINGS),
    st.sampled_from(sorted(SWITCHES)),
    st.one_of(st.just(True), st.integers(1), st.text(min_size=1), st.just({"a": 1}), st.just([1])),
    st.lists(st.one_of(st.text("ab", min_size=1), st.just(...)), max_size=8),  # a mapping with this key, or a list
    st.sampled_from(sorted(NOTATIONS)),
    st.sampled_from(LAYERS),
)
def test_no_depth_and_no_key_hides_it(tmp_path_factory, key, switch, value, inside, notation, layer):
    held = {switch: value}
    for name in inside:
        held = [held] if name is ... else {name: held, "other": 1}
    held = {"dtype": held} if key == "model_init_kwargs" else {"some": held}
    line = line_that_refuses(tmp_path_factory.getbasetemp(), NOTATIONS[notation](key, held), layer)
    assert f": {key}: {switch}=" in line
    assert f"give --{key} on the command line" in line


TOP = {
    "trust_remote_code": ["true", '"true"', "'yes'", "1", "on", "!!bool yes", "!!str true"],
    "attn_implementation": ["owner/kernel", '"owner\\/kernel"', "'paged|owner/kernel@1:f'", "!!str owner/kernel"],
    "env": ["{LD_PRELOAD: x}", "{PYTHONPATH: .}", "{<<: {HF_HUB_KERNELS: 1}}", '{"PYTHONSTARTUP": x}', "{1: 2}"],
    "task_options": ["{allow_weak_sandbox: true}", "{tasks: {code: {allow_weak_sandbox: 1}}}"],
    "deepspeed": ["{compile: {backend: mine.evil}}", '\'{"compile": {"backend": "mine.evil"}}\''],
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in TOP.items() for value in values])
def test_keys_by_themselves(tmp_path, key, value, layer):
    line = line_that_refuses(tmp_path, f"{key}: {value}\n", layer)
    assert key in line
    assert "on the command line" in line or "shell" in line


@pytest.mark.parametrize("key", ["accelerator_config", "deepspeed", "fsdp_config"])
def test_a_file_that_a_key_names_is_looked_at(tmp_path, key):
    file = tmp_path / "own.json"
    file.write_text('{"a": {"trust_remote_code": true}}')
    assert f"{key}: trust_remote_code=True" in line_that_refuses(tmp_path, f"{key}: {file}\n", "recipe")
    file.write_text("{")
    assert f"{key}=" in line_that_refuses(tmp_path, f"{key}: {file}\n", "recipe")
    file.write_text('{"a": 1}')
    (tmp_path / "sound.yaml").write_text(f"{key}: {file}\n")
    check_recipe(tmp_path / "sound.yaml", HINTS)
    assert f"{key}='eyJhIjog" in line_that_refuses(
        tmp_path, f"{key}: eyJhIjogMX0=\n", "recipe"
    )  # base64, as DeepSpeed takes it


def test_every_text_that_the_parser_reads_as_a_mapping_is_read_here():
    assert set(JSON_TEXTS) <= set(MAPPINGS)
    text = '{"a": {"b": [1, "x"]}, "c": null}'
    own, args, _ = PARSER.parse_args_and_config(
        ["--use_cpu", "true", "--bf16", "false"]
        + ["--task_options", text, "--model_init_kwargs", text, "--generation_kwargs", text]
    )
    parsed = [own.task_options, args.model_init_kwargs, args.generation_kwargs]
    assert parsed == [json_mapping("x", "model_init_kwargs", text)] * 3


ALLOWED = [
    "model_init_kwargs: {dtype: bfloat16, attn_implementation: eager, attention_dropout: 0.0, layerdrop: 0}",
    'model_init_kwargs: \'{"attn_implementation": {"": "sdpa"}, "use_kernels": false, "kernel_config": null}\'',
    "model_init_kwargs: {trust_remote_code: false}",
    "model_init_kwargs: null",
    "trust_remote_code: false",
    "trust_remote_code: 'false'",
    "generation_kwargs: {cache_config: {backend: hqq}, stop_strings: [a/b]}",
    "generation_kwargs: '{\"suppress_tokens\": [1, 2]}'",
    "chat_template_kwargs: {enable_thinking: false}",
    "attn_implementation: flash_attention_2",
    "deepspeed: {zero_optimization: {stage: 2}}",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_what_runs_no_code_is_taken(tmp_path, text):
    (tmp_path / "arm.yaml").write_text(f"{text}\n")
    check_recipe(tmp_path / "arm.yaml", HINTS)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--trust_remote_code", "true"),
        ("--attn_implementation", "owner/kernel"),
        ("--task_options", '{"allow_weak_sandbox": true}'),
        *(("--model_init_kwargs", json.dumps(value)) for value in FORBIDDEN if 1 not in value),
    ],
)
def test_the_command_line_may_ask_for_it(tmp_path, option, value):
    (tmp_path / "arm.yaml").write_text("use_cpu: true\nbf16: false\n")
    arguments = check_arguments(None, ["--config", str(tmp_path / "arm.yaml"), option, value])
    parts = PARSER.parse_args_and_config(arguments.argv)
    (held,) = [getattr(part, option[2:]) for part in parts if hasattr(part, option[2:])]
    assert bool(held)
    assert held != {}


def test_the_arguments_of_a_model_name_no_code():
    forbidden = {key for value in FORBIDDEN for key in value} - {"attn_implementation"}
    assert not INIT & set(SWITCHES)
    assert not INIT & forbidden
