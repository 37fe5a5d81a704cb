"""The recipes of the study's families: keys that no change of the product may move, and bases that begin above 0."""

import json
from pathlib import Path

import pytest
import yaml
from run_record import read_rows
from trl import ModelConfig

from study.bases import model_of
from tests.conftest import forks  # noqa: F401  a fixture
from trl_prorl import ProRLConfig, environment
from trl_prorl.launch.recipe import RecipeParser, parse_recipe
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.train import TaskArguments


ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "study" / "recipes"
FAMILIES = ("reverse_digits", "sorting", "sums")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_the_tiny_base_with_another_task(family):
    """All its arms have the same keys as the tiny ones; only the base, the task and its length differ."""
    tiny = read_recipe(ROOT / "recipes" / "tiny" / "base.yaml")
    own = read_recipe(RECIPES / f"{family}.yaml")
    assert tiny.pop("fast") is True  # the study says the same key by key, and refuses what falls back
    tiny |= {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
    assert own.pop("report_to") == "none"  # the default, which the shipped recipes leave to the user
    assert own.pop("model_name_or_path") == f"study/bases/{own['task']}" == f"study/bases/{family}"
    del tiny["model_name_or_path"]
    other = {key for key in tiny.keys() | own.keys() if tiny.get(key) != own.get(key)}
    of_the_task = {"task", "task_level", "task_options", "max_completion_length"}
    assert other <= (set() if family == "reverse_digits" else of_the_task)
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    _, config, _ = parser.parse_args_and_config(["--config", str(RECIPES / f"{family}.yaml")])
    assert config.variant == "plain"


def test_no_family_leaves_its_acceleration_to_the_product():
    for file in RECIPES.glob("*_*.yaml"):
        assert "fast" not in yaml.safe_load(file.read_text())


def test_the_pretrained_model_keeps_its_precision(tmp_path, monkeypatch):
    """On a CPU that only emulates bf16, too."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2 avx512f\n")
    monkeypatch.setattr(environment, "CPUINFO", cpuinfo)
    options = ["--config", str(RECIPES / "smollm2.yaml"), "--output_dir", "run"]
    _, config, model = parse_recipe(options)
    assert (config.bf16, model.dtype) == (True, "bfloat16")


@pytest.mark.parametrize("family", ["reverse_digits", "sorting", pytest.param("sums", marks=pytest.mark.slow)])
def test_a_family_starts_above_0(forks, tmp_path, family):  # noqa: F811
    """Its base answers some questions; the base without an arm's keys is the arm without a KL."""
    model = model_of(ROOT, f"study/bases/{family}-0")
    options = f"--model_name_or_path {model} --output_dir {tmp_path / 'run'} --max_steps 4 --train_rows 64 "
    options += "--per_device_train_batch_size 64 --num_generations 8 --max_completion_length 48 --disable_tqdm true"
    script = ROOT / "recipes" / "grpo_variantA.py"
    status, written = forks.run(script, "--config", str(RECIPES / f"{family}.yaml"), *options.split())
    assert status == 0, written[-3000:]
    rows = read_rows(tmp_path / "run")
    assert len(rows) == 4
    assert all(0.02 < row[f"pass_rate/{family}"] < 0.6 for row in rows[::2])
    base = json.loads((tmp_path / "run" / "env.json").read_text())["base_model"]
    assert base["name"] == model
    assert len(base["sha256"]) == 64
