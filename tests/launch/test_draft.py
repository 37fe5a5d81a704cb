"""What a recipe and a command line alone make wrong is refused before torch, transformers and TRL are imported."""

import pytest
import torch
import yaml
from no_libraries import ROOT, without_libraries
from run_record import write_run

from trl_prorl import environment
from trl_prorl.launch import draft as draft_module
from trl_prorl.launch.command_line import check_arguments
from trl_prorl.launch.shipped_recipes import shipped_recipes


SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
REFUSED = [
    ({"num_generations": 3}, [], "num_generations=3"),
    ({}, ["--num_generations", "3"], "num_generations=3"),
    ({}, ["--learning_rate", "fast"], "--learning_rate 'fast'"),
    ({}, ["--ref_reset_mix", "2"], "ref_reset_mix=2.0"),
    ({"loss_type": "drgrpo"}, [], "loss_type='drgrpo'"),
    ({"lora_r": 0}, [], "lora_r=0"),
    ({"kl_clamp": 1.0}, [], "kl_clamp=1.0"),
    ({"bf16": "auto", "dtype": "float32"}, [], "bf16: auto"),
    ({"output_dir": "taken"}, [], "output_dir='taken'"),
    ({"output_dir": "run", "run_dir": "/proc/run"}, [], "run_dir='/proc/run'"),
    ({"output_dir": "theirs"}, [], "output_dir='theirs' holds config.json"),
]


@pytest.mark.parametrize(("keys", "options", "named"), REFUSED, ids=[named for *_, named in REFUSED])
def test_key_and_value_are_named_in_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, keys, options, named
):
    write_run(tmp_path / "taken", {"output_dir": "taken"}, [{"step": 1}])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump({"task": "sums", "use_cpu": True, "bf16": False, **keys}))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        check_arguments(None, ["--config", "arm.yaml", *options])
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert line.startswith("error: ") and named in line and line.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["train", "script", "preflight"])
def test_each_door_refuses_before_it_imports_a_library(tmp_path, command):
    (tmp_path / "arm.yaml").write_text("task: sums\nuse_cpu: true\nbf16: false\nnum_generations: 3\n")
    start = {"script": [SCRIPT, "--config"], "train": ["-m", "trl_prorl", "train"]}
    done = without_libraries(*start.get(command, ["-m", "trl_prorl", command]), str(tmp_path / "arm.yaml"))
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.startswith("error: num_generations=3") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["train tiny/variantA --output_dir", "passk --run", "report --runs"])
def test_the_first_line_comes_before_any_library(tmp_path, command):
    """Here none can be imported: the line is there, and then the import fails."""
    name, *words = command.split()
    folder = tmp_path / "run"
    if name != "train":
        config = {"model_name_or_path": "embedded", "task": "reverse_digits"}
        write_run(folder, config, [{"step": 1, "reward": 0.5}])
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home")}
    done = without_libraries("-m", "trl_prorl", name, *words, str(folder), env=env)
    assert done.stderr.startswith(f"{name}: "), done.stderr[-2000:]
    assert done.returncode != 0


def test_no_recipe_that_comes_with_the_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_module, "torch_finds_no_gpu", lambda: False)
    for name in shipped_recipes():
        assert check_arguments(None, ["--config", name, "--output_dir", str(tmp_path / "run")]).recipe is not None


def test_it_is_never_said_of_a_machine_on_which_torch_finds_a_gpu():
    assert not (environment.torch_finds_no_gpu() and torch.cuda.is_available())
