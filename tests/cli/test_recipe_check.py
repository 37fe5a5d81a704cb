"""
A recipe as it is read: a base whose keys it has, and whatever is wrong, which is one line that names file and key. And
a recipe cannot make the machine run code that is not installed on it, however it spells it; a command line may.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from transformers import LlavaConfig
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.cli.model_name import find_model
from trl_prorl.cli.recipe import RecipeParser
from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.cli.towers import find_towers
from trl_prorl.errors import InputError
from trl_prorl.text import one_line
from trl_prorl.train import TaskArguments, main


ROOT = Path(__file__).parents[2]
PARSER = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
TINY = ROOT / "recipes" / "tiny" / "plain.yaml"
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
    """What a recipe is refused with, without its folder."""
    with pytest.raises(ValueError) as error:
        parsed(path)
    return one_line(error.value).replace(f"{path.parent}/", "")


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
        (None, "base: base.yaml\n", "base.yaml", "No such file"),
        ("base: arm.yaml\n", "base: base.yaml\n", "base.yaml", "base='arm.yaml'"),  # a circle
        ("beta: 1\n", "base: base.yaml\nbeat: 2\n", "arm.yaml", "did you mean 'beta'"),
        ("beat: 1\n", "base: base.yaml\nbeta: 2\n", "base.yaml", "did you mean 'beta'"),
        ("beta: 1\n", "bsae: base.yaml\n", "arm.yaml", "did you mean 'base'"),
        ("trust_remote_code: true\n", "base: base.yaml\n", "base.yaml", "trust_remote_code=True"),
        ("env: {OMP_NUM_THREADS: 1}\n", "base: base.yaml\n", "base.yaml", "OMP_NUM_THREADS"),
        (None, "env: {PYTHONSTARTUP: x}\n", "arm.yaml", "in the shell"),
        (None, "torch_dtype: float32\n", "arm.yaml", "write dtype"),
        (None, "beta: !!python/object/apply:os.system [ls]\n", "arm.yaml", "constructor"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_file(recipe, base, arm, file, named):
    if base is not None:
        recipe(base, "base.yaml")
    line = refused(recipe(arm))
    assert file in line and named in line


def test_what_yaml_reads_as_something_else_is_read_as_the_key_s_type(recipe):
    text = "learning_rate: 1e-4\ndisable_tqdm: 'YES'\npack_groups: on\ncompact_generation: off\nbeta: 1\n"
    _, args, _ = parsed(recipe(b"\xef\xbb\xbf" + (text + CPU).encode()))
    assert (args.learning_rate, args.disable_tqdm, args.pack_groups) == (1e-4, True, "on")
    assert (args.compact_generation, args.beta) == ("off", 1.0)


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
    lambda key, value: yaml.safe_dump({key: f"\n [0, {json.dumps(value)}]"}),
    lambda key, value: yaml.safe_dump({key: {"dtype": json.dumps({"a": json.dumps([value])})}}),
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
    *("env: {LD_PRELOAD: x}", "env: {PYTHONPATH: .}", "env: {<<: {HF_HUB_KERNELS: 1}}", "env: [x]"),
    *("task_options: {allow_weak_sandbox: true}", "task_options: {tasks: {code: {allow_weak_sandbox: 1}}}"),
    *("deepspeed: {compile: {backend: mine.evil}}", 'deepspeed: \'{"compile": {"backend": "mine.evil"}}\''),
]


@pytest.mark.parametrize("text", TOP)
def test_keys_by_themselves(recipe, text):
    assert text.partition(":")[0] in refused(recipe(f"{text}\n"))


@pytest.mark.parametrize("key", ["accelerator_config", "deepspeed", "fsdp_config"])
def test_a_file_that_a_key_names_is_looked_at(recipe, key, monkeypatch):
    file = recipe('{"a": {"trust_remote_code": true}}', "own.json")
    assert f"{key}: trust_remote_code=True" in refused(recipe(f"{key}: {file}\n"))
    assert "eyJhIjog" in refused(recipe(f"{key}: eyJhIjogMX0=\n"))  # base64, as DeepSpeed takes it
    like_json = shutil.copy(file, file.parent / " {}")  # transformers reads text as JSON only if it begins with {
    monkeypatch.chdir(file.parent)
    assert f"{key}: trust_remote_code=True" in refused(recipe(f"{key}: ' {{}}'\n")), like_json


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


REMOTE_CODE = """
from pathlib import Path
from transformers import Qwen2Config, Qwen2ForCausalLM

Path({marker!r}).touch()

class RemoteConfig(Qwen2Config):
    model_type = "remote"

class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""
WAYS_TO_TRUST = [
    "trust_remote_code: true",
    "model_init_kwargs: {trust_remote_code: true}",
    """model_init_kwargs: '{"trust\\u005fremote_code": true}'""",
    """model_init_kwargs: "{\\"trust_remote_code\\": true}\"""",
]


@pytest.fixture
def strange_model(tiny_model, tmp_path):
    """A folder of a model with code of its own, and the file that this code makes when it runs."""
    folder = tmp_path / "strange"
    shutil.copytree(tiny_model, folder)
    marker = tmp_path / "the code ran"
    (folder / "remote.py").write_text(REMOTE_CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"}
    config["model_type"] = "remote"
    (folder / "config.json").write_text(json.dumps(config))
    return folder, marker


@pytest.mark.parametrize("options, runs", [*((text, False) for text in WAYS_TO_TRUST), ("--trust_remote_code", True)])
def test_the_code_of_a_model_runs_if_the_command_line_asks_and_not_if_a_recipe_does(
    recipe, strange_model, tmp_path, monkeypatch, options, runs
):
    """The file that this code makes is the evidence."""
    folder, marker = strange_model
    monkeypatch.chdir(tmp_path)
    text = f"{CPU}base: {TINY}\nmodel_name_or_path: {folder}\nmax_steps: 1\ntrain_rows: 8\noutput_dir: run\n"
    words = options.split() if runs else []
    path = recipe(text if runs else f"{text}{options}\n")
    with nullcontext() if runs else pytest.raises(SystemExit):
        main(None, [str(path), "--max_completion_length", "4", *words])
    assert marker.exists() == runs


def test_a_kernel_in_a_model_s_own_configuration_is_not_run(tiny_model, tmp_path):
    """Whether a recipe or a script names the model, also in a part of its configuration."""
    folder = tmp_path / "strange"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    for keys in ({"attn_implementation": "owner/kernel"}, {"text_config": {"_attn_implementation": "owner/kernel"}}):
        (folder / "config.json").write_text(json.dumps(config | keys))
        for init in (None, {"attn_implementation": {"": "sdpa"}}):
            with pytest.raises(InputError, match="owner/kernel"):
                find_model(str(folder), init=init)
        assert find_model(str(folder), init={"attn_implementation": "sdpa"}) == str(folder)


def test_a_kernel_does_not_run_where_towers_are_looked_for(tmp_path):
    keys = {"architectures": ["LlavaForConditionalGeneration"], "attn_implementation": "kernels-community/flash-attn2"}
    (tmp_path / "config.json").write_text(json.dumps(LlavaConfig().to_dict() | keys))
    assert find_towers(str(tmp_path)) == ["model.vision_tower", "model.multi_modal_projector"]
