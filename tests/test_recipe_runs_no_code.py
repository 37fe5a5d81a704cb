"""
A recipe cannot make the machine run code that is not installed on it, however it spells the wish: each ends in one
line before anything is loaded. The command line, which users type themselves, may ask for the same.
"""

import json

import pytest
import yaml
from any_content import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.launch.command_line import first_look
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_check import INIT, SWITCHES, check_recipe, json_mapping, takes_mapping
from trl_prorl.train import TaskArguments


HINTS = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).hints()
MAPPINGS = sorted(name for name, hint in HINTS.items() if takes_mapping(hint))
TEXTS = sorted({"task_options", *ProRLConfig._VALID_DICT_FIELDS})  # text of these is read as JSON
KERNELS = ["owner/kernel", "owner/kernel@v1:forward", "paged|owner/kernel", {"": "owner/kernel"}]
KERNELS += [{"text_config": "owner/kernel"}, ["owner/kernel"], {"": {"": "a/b"}}]
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


def refused(folder, text, layer):
    """The line that refuses a recipe of this text, or one that has it as its base."""
    (folder / "arm.yaml").write_text(text if layer == "recipe" else "base: base.yaml\nmax_steps: 1\n")
    (folder / "base.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        check_recipe(folder / "arm.yaml", HINTS)
    line = str(error.value)
    file = folder / ("arm.yaml" if layer == "recipe" else "base.yaml")
    assert line.startswith(f"{file}: ") and "\n" not in line and len(line) - len(str(file)) <= 500
    return line


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_no_notation_hides_it(tmp_path, notation, layer):
    for value in FORBIDDEN:
        line = refused(tmp_path, NOTATIONS[notation]("model_init_kwargs", value), layer)
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
    line = refused(tmp_path_factory.getbasetemp(), NOTATIONS[notation](key, held), layer)
    assert f": {key}: {switch}=" in line and f"give --{key} on the command line" in line


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
    line = refused(tmp_path, f"{key}: {value}\n", layer)
    assert key in line and ("on the command line" in line or "shell" in line)


@pytest.mark.parametrize("key", ["accelerator_config", "deepspeed", "fsdp_config"])
def test_a_file_that_a_key_names_is_looked_at(tmp_path, key):
    file = tmp_path / "own.json"
    file.write_text('{"a": {"trust_remote_code": true}}')
    assert f"{key}: trust_remote_code=True" in refused(tmp_path, f"{key}: {file}\n", "recipe")
    file.write_text("{")
    assert f"{key}=" in refused(tmp_path, f"{key}: {file}\n", "recipe")
    file.write_text('{"a": 1}')
    (tmp_path / "sound.yaml").write_text(f"{key}: {file}\n")
    check_recipe(tmp_path / "sound.yaml", HINTS)
    assert f"{key}='eyJhIjog" in refused(tmp_path, f"{key}: eyJhIjogMX0=\n", "recipe")  # base64, as DeepSpeed takes it


def test_every_text_that_the_parser_reads_as_a_mapping_is_read_here():
    assert set(TEXTS) <= set(MAPPINGS)
    text = '{"a": {"b": [1, "x"]}, "c": null}'
    own, args, _ = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(
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
    argv = first_look(None, ["--config", str(tmp_path / "arm.yaml"), option, value])
    parts = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(argv)
    (held,) = [getattr(part, option[2:]) for part in parts if hasattr(part, option[2:])]
    assert bool(held) and held != {}


def test_the_arguments_of_a_model_name_no_code():
    forbidden = {key for value in FORBIDDEN for key in value} - {"attn_implementation"}
    assert not INIT & set(SWITCHES) and not INIT & forbidden
