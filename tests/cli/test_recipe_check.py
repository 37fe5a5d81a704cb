"""
A recipe as it is read: a base whose keys it has, and whatever is wrong, which is one line that names file and key. And
a recipe cannot make the machine run code that is not installed on it, however it spells it; a command line may.
"""

import json
from pathlib import Path

import pytest
import torch
import yaml
from any_content import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.cli.recipe import RecipeParser, parse_recipe
from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.train import TaskArguments


ROOT = Path(__file__).parents[2]
PARSER = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
CPU = "task: sums\nuse_cpu: true\nbf16: false\n"


@pytest.fixture
def recipe(tmp_path):
    """A function that writes a recipe, and returns its path."""

    def write(text, name="arm.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def parsed(path, *options):
    """The task's keys, the configuration and the model's keys of a command line."""
    return PARSER.parse_args_and_config(["--config", str(path), *options])


def refused(path):
    """The one line in which a recipe is refused, without its folder."""
    with pytest.raises(ValueError) as error:
        parsed(path)
    line = str(error.value).replace(f"{path.parent}/", "")
    assert len(line.splitlines()) == 1
    return line


def test_keys_of_the_arm_win_and_null_unsets_from_any_directory(recipe, tmp_path, monkeypatch):
    recipe("beta: 1.0\nmax_steps: 5\nkl_target: 0.1\ntask: sorting\n", "base.yaml")
    (tmp_path / "arms").mkdir()
    arm = recipe("base: ../base.yaml\nmax_steps: 7\nkl_target: null\noutput_dir: runs/x\n", "arms/arm.yaml")
    assert read_recipe(arm) == {"beta": 1.0, "max_steps": 7, "task": "sorting", "output_dir": "runs/x"}
    monkeypatch.chdir(tmp_path)
    assert read_recipe(arm.relative_to(tmp_path)) == read_recipe(arm)


@pytest.mark.parametrize(
    "base, arm, file, named",
    [
        (None, "base: base.yaml\n", "arm.yaml", "base='base.yaml'"),
        ("base: arm.yaml\n", "base: base.yaml\n", "arm.yaml", "base='base.yaml'"),
        ("beta: 1\n", "base: 3\n", "arm.yaml", "base=3"),
        ("beta: 1\n", "base: base.yaml\nbeat: 2\n", "arm.yaml", "did you mean 'beta'"),
        ("beat: 1\n", "base: base.yaml\nbeta: 2\n", "base.yaml", "did you mean 'beta'"),
        ("beta: 1\n", "bsae: base.yaml\n", "arm.yaml", "did you mean 'base'"),
        ("- 1\n", "base: base.yaml\n", "arm.yaml", "base='base.yaml'"),
        ("trust_remote_code: true\n", "base: base.yaml\n", "base.yaml", "trust_remote_code=True"),
        ("env: {PYTHONSTARTUP: x}\n", "base: base.yaml\n", "base.yaml", "PYTHONSTARTUP"),
    ],
)
def test_what_is_wrong_is_said_with_its_file(recipe, base, arm, file, named):
    if base is not None:
        recipe(base, "base.yaml")
    line = refused(recipe(arm))
    assert line.startswith(f"{file}: ")
    assert named in line


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MALFORMED = [
    ("torch_dtype: float32\n", "write dtype"),
    ("beta: 1.0\nbeta: 2.0\n", "'beta' is given twice"),
    ("lr_scheduler_kwargs: {a: 1, 'a': 2}\n", "'a' is given twice"),
    ("env: [OMP_NUM_THREADS]\n", "env=['OMP_NUM_THREADS']"),
    ("env: {OMP_NUM_THREADS: null}\n", "OMP_NUM_THREADS"),
    ("? [beta]\n: 1\n", "a key is a list"),
    ("beta: " + "[" * 3000 + "]" * 3000, "is not YAML"),
    (LAUGHS.replace("i: &i", "max_steps:"), "aliases"),
    ("lr_scheduler_kwargs: &a {b: *a}\n", "anchor"),
    (f"beta: 1 #{' ' * 2**20}\n", "bytes"),
    (b"output_dir: caf\xe9\n", "text"),
    ("beta: !!python/object/apply:os.system [ls]\n", "constructor"),
    ("? " + "x" * 10_000 + "\n: 1\n", "unknown key 'xxxx"),
    ("1: 2\n", "unknown key 1"),
    ("", "None"),
    ("generation_kwargs: '{bad'\n", "generation_kwargs='{bad'"),
]


@pytest.mark.parametrize("content, named", MALFORMED, ids=[named for _, named in MALFORMED])
def test_what_is_malformed_is_one_short_line(recipe, content, named):
    line = refused(recipe(content))
    assert "arm.yaml" in line and named in line


VALUES = ["num_generations: 2.5", "kl_target: true", "max_steps: many", "use_cpu: maybe"]


@pytest.mark.parametrize("text", VALUES)
def test_a_value_of_another_type_is_one_line_with_its_key(recipe, text):
    assert text.partition(":")[0] in refused(recipe(f"{CPU}{text}\n"))


def test_what_yaml_reads_as_something_else_is_read_as_the_key_s_type(recipe):
    text = "learning_rate: 1e-4\ndisable_tqdm: 'YES'\npack_groups: on\ncompact_generation: off\nbeta: 1\nrun_name: 7\n"
    _, args, _ = parsed(recipe(b"\xef\xbb\xbf" + (text + CPU).encode()))
    assert (args.learning_rate, args.disable_tqdm, args.pack_groups) == (1e-4, True, "on")
    assert (args.compact_generation, args.beta, args.run_name) == ("off", 1.0, "7")


def test_merge_keys_are_valid_yaml(recipe):
    text = (
        "<<: [{beta: 1.0, max_steps: 3}, {beta: 2.0, num_iterations: 2}]\n"
        "lr_scheduler_kwargs: &a {num_cycles: 1, power: 2}\n"
        "activation_checkpointing_kwargs: {<<: *a, power: 3}\n"
    )
    assert read_recipe(recipe(text)) == yaml.safe_load(text)


SIGNS = "beta: |env: |&a |*a|!!int |!!set |!!binary |!!timestamp |!!float |<<: |? |: |- |{|}|[|]|\n|x|1|'".split("|")
TEXTS = st.one_of(
    st.text("{}[]:,&*!?|>-#'\"%@`<= \n\tab1.", max_size=40).map(str.encode),
    st.lists(st.sampled_from(SIGNS), max_size=12).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=20),
)


@given(TEXTS)
@settings(max_examples=100, **QUICK)
def test_no_content_ends_in_a_traceback(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "arm.yaml"
    path.write_bytes(content)
    try:
        read_recipe(path)
    except ValueError as error:
        assert len(str(error)) - len(str(path)) <= 500


# ------------------------------------------------------------------------------------------ code in a recipe


# What `model_init_kwargs` may not hold.
FORBIDDEN = [
    *({"trust_remote_code": value} for value in (True, "true", "false", 1, [True])),
    *({"attn_implementation": value} for value in ("owner/kernel", "paged|owner/kernel@v1:f", {"": {"": "a/b"}})),
    {"kernel_config": {"RMSNorm": "owner/kernel:RMSNorm"}},
    {"experts_implementation": "owner/kernel"},
    {"quantization_config": {"quant_method": "mxfp4"}},
    {"use_safetensors": False},
    {"token": "x"},
]


@pytest.mark.parametrize("value", FORBIDDEN, ids=str)
def test_the_arguments_of_a_model_name_no_code_but_on_the_command_line(recipe, value):
    line = refused(recipe(yaml.safe_dump({"model_init_kwargs": value})))
    assert f"model_init_kwargs: {next(iter(value))}=" in line and "command line" in line
    _, args, _ = parsed(recipe(CPU), "--model_init_kwargs", json.dumps(value))
    assert args.model_init_kwargs


# Ways to write `key: value` in YAML that may reach the check as something else.
NOTATIONS = [
    lambda key, value: yaml.safe_dump({key: value}),
    lambda key, value: f"? !!str {key}\n: !!map {json.dumps(value)}\n",
    lambda key, value: f"{key}:\n  <<: {json.dumps(value)}\n",
    lambda key, value: f"<<: {{{key}: {json.dumps(value)}}}\n",
    lambda key, value: f"{key}: {{<<: [&x {json.dumps(value)}, *x]}}\n",
    lambda key, value: yaml.safe_dump({key: json.dumps(value)}),
    lambda key, value: yaml.safe_dump({key: json.dumps(value).replace("_", "\\u005f")}),
]


@pytest.mark.parametrize("depth", [0, 5])
@pytest.mark.parametrize("key", ["model_init_kwargs", "generation_kwargs", "task_options"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_no_notation_and_no_depth_hides_it(recipe, notation, key, depth):
    held = {"trust_remote_code": True}
    for level in range(depth):
        held = {"dtype": [held] if level % 2 else held}
    assert refused(recipe(notation(key, held))).startswith(f"arm.yaml: {key}: trust_remote_code=")


TOP = [
    *("trust_remote_code: true", "trust_remote_code: 'yes'", "trust_remote_code: 1", "trust_remote_code: !!bool yes"),
    *("attn_implementation: owner/kernel", "attn_implementation: 'paged|owner/kernel@1:f'"),
    *("env: {LD_PRELOAD: x}", "env: {PYTHONPATH: .}", "env: {<<: {HF_HUB_KERNELS: 1}}", "env: {1: 2}"),
    *("task_options: {allow_weak_sandbox: true}", "task_options: {tasks: {code: {allow_weak_sandbox: 1}}}"),
    *("deepspeed: {compile: {backend: mine.evil}}", 'deepspeed: \'{"compile": {"backend": "mine.evil"}}\''),
]


@pytest.mark.parametrize("text", TOP)
def test_keys_by_themselves(recipe, text):
    assert text.partition(":")[0] in refused(recipe(f"{text}\n"))


@pytest.mark.parametrize("key", ["accelerator_config", "deepspeed", "fsdp_config"])
def test_a_file_that_a_key_names_is_looked_at(recipe, key):
    file = recipe('{"a": {"trust_remote_code": true}}', "own.json")
    assert f"{key}: trust_remote_code=True" in refused(recipe(f"{key}: {file}\n"))
    assert f"{key}='eyJhIjog" in refused(recipe(f"{key}: eyJhIjogMX0=\n"))  # base64, as DeepSpeed takes it


@pytest.mark.parametrize(
    "text",
    [
        "model_init_kwargs: {dtype: bfloat16, attn_implementation: eager, attention_dropout: 0.0}",
        'model_init_kwargs: \'{"attn_implementation": {"": "sdpa"}, "use_kernels": false, "kernel_config": null}\'',
        "trust_remote_code: 'false'",
        "generation_kwargs: {cache_config: {backend: hqq}, stop_strings: [a/b]}",
        "attn_implementation: flash_attention_2",
    ],
)
def test_what_runs_no_code_is_taken(recipe, text):
    parsed(recipe(f"{text}\n{CPU}"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_recipe_of_a_gpu_without_one_names_the_cure():
    with pytest.raises(ValueError, match="needs a GPU.*use_cpu: true.*gsm8k/cpu"):
        parse_recipe(["--config", str(ROOT / "recipes/gsm8k/variantA.yaml")])
    with pytest.raises(ValueError, match="gsm8k/cpu"):
        ProRLConfig("run")  # TRL's default of bf16
