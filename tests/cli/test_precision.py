"""bf16 on CPUs: what is known of one, and the recipe that measures and chooses."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from trl_prorl import train
from trl_prorl.cli import environment, precision
from trl_prorl.cli.environment import cpu_computes_bf16
from trl_prorl.cli.recipe import parse_recipe


ROOT = Path(__file__).parents[2]
# Lines of /proc/cpuinfo, shortened.
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2 avx512f {}\nbugs\t\t: amx_bf16\n"
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve bf16\nCPU part\t: 0xd40\n"
MACHINES = {
    "AMX": (INTEL.format("avx512_bf16 amx_tile amx_bf16"), True),
    "AVX512-BF16": (INTEL.format("avx512_bf16"), True),
    "AVX-NE-CONVERT": (INTEL.format("avx_ne_convert"), True),
    "AVX512": (INTEL.format("avx512bw avx512_vnni"), False),
    "ARM": (ARM, None),
    "Mac": (None, None),
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that puts the CPU of a name in the place of this one."""

    def become(name):
        path = tmp_path / name
        text, _ = MACHINES[name]
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(environment, "CPUINFO", path)

    return become


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_known_of_a_cpu(machine, name):
    machine(name)
    assert cpu_computes_bf16() is MACHINES[name][1]


def parsed(recipe, *options):
    """`bf16` and `dtype` of a recipe."""
    _, args, model_args = parse_recipe(["--config", str(recipe), *options])
    return args.bf16, model_args.dtype


SMOLLM2 = ROOT / "recipes" / "smollm2" / "plain.yaml"
FP32 = (False, "float32")
IN_BF16 = (True, "bfloat16")


@pytest.fixture
def measured(monkeypatch):
    """A function that sets the GFLOP/s of this machine in fp32 and in bf16; `None`: nothing may be measured."""

    def measure(fp32=None, bf16=None):
        def products():
            assert fp32 is not None
            return {False: fp32, True: bf16}

        monkeypatch.setattr(precision, "measure_products", products)

    return measure


@pytest.mark.parametrize(("fp32", "bf16", "taken"), [(118.4, 75.6, FP32), (58.0, 173.0, IN_BF16)])
def test_a_recipe_for_a_cpu_takes_what_it_computes_fastest(measured, capsys, fp32, bf16, taken):
    """An Intel Xeon with avx512_bf16 and no amx_bf16, and an AMD EPYC with avx512_bf16."""
    measured(fp32, bf16)
    assert parsed(SMOLLM2) == taken
    (line,) = capsys.readouterr().err.splitlines()
    assert taken[1] in line and f"{fp32:.0f}" in line and f"{bf16:.0f}" in line


def test_the_command_line_wins_and_nothing_is_measured(measured, capsys):
    measured()
    for options in (["--bf16", "true", "--dtype", "bfloat16"], ["--bf16", "true"]):
        assert parsed(SMOLLM2, *options) == IN_BF16
    assert parsed(SMOLLM2, "--bf16", "false") == FP32
    assert capsys.readouterr().err == ""


def test_both_precisions_are_measured_on_this_machine():
    assert min(precision.measure_products()[bf16] for bf16 in (False, True)) > 0


def test_several_processes_which_might_choose_differently_are_refused(measured, monkeypatch):
    measured()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="bf16: auto"):
        precision.choose_precision({"bf16": "auto", "use_cpu": True}, {})


def test_a_resume_goes_on_as_the_run_began_whatever_this_machine_would_choose(
    measured, tmp_path, tiny_model, monkeypatch, capsys
):
    """In the recipe's own training, from one checkpoint to the next."""
    recipe = tmp_path / "arm.yaml"
    keys = {"model_name_or_path": tiny_model, "task": "sums", "use_cpu": True, "bf16": "auto", "max_steps": 1}
    keys |= {"output_dir": str(tmp_path / "run"), "per_device_train_batch_size": 4, "num_generations": 4}
    keys |= {"train_rows": 8, "max_completion_length": 4, "save_strategy": "steps", "save_steps": 1}
    keys |= {"report_to": "none", "lr_scheduler_type": "constant", "disable_tqdm": True}
    recipe.write_text(yaml.safe_dump(keys))
    measured(58.0, 173.0)
    train.main(recipe, [])
    resume = ["--max_steps", "2", "--resume_from_checkpoint", "true"]
    measured(118.0, 76.0)
    train.main(recipe, resume)
    then, now = (
        json.loads((tmp_path / "run" / f"checkpoint-{step}" / "identity.json").read_text()) for step in (1, 2)
    )
    assert (then["bf16"], then["dtype"]) == (now["bf16"], now["dtype"]) == IN_BF16
    assert "checkpoint-1" in capsys.readouterr().err
    assert "173" in json.loads((tmp_path / "run" / "env.json").read_text())["precision"]
    with pytest.raises(SystemExit):
        train.main(recipe, [*resume, "--max_steps", "3", "--bf16", "false"])
    assert "bf16: True -> False" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, named",
    [
        ("use_cpu: true\nbf16: auto\ndtype: bfloat16\n", "dtype='bfloat16'"),
        ("bf16: auto\n", "use_cpu"),
        ("use_cpu: true\nfp16: auto\n", "fp16.*auto"),
    ],
)
def test_what_auto_cannot_choose_is_refused(tmp_path, text, named):
    recipe = tmp_path / "arm.yaml"
    recipe.write_text(text + "output_dir: run\ntask: sums\n")
    with pytest.raises(ValueError, match=named):
        parse_recipe(["--config", str(recipe)])


def test_the_commit_is_not_that_of_a_project_with_an_environment(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / ".gitignore").write_text(".venv\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / ".venv").mkdir()
    shutil.copy(environment.__file__, tmp_path / ".venv")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / ".venv" / "environment.py"))
    assert environment.git_commit() is None
