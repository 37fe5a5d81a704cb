"""A recipe may name another as its base: whose keys it has, which win, and what is refused."""

import pytest

from trl_prorl.launch.recipe_check import check_recipe, read_recipe


HINTS = {"beta": float, "max_steps": int, "kl_target": float | None, "task": str, "output_dir": str}


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


def test_without_a_base_null_is_a_value(recipe):
    assert read_recipe(recipe("kl_target: null\n")) == {"kl_target": None}


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


def test_a_run_s_config_is_complete(forks, tiny_model, recipe, tmp_path):
    """What `--config` leads to is in `config.yaml` whole: the base is not needed to start the run again."""
    import yaml

    recipe(
        f"task: reverse_digits\ntask_level: 1\ntrain_rows: 8\nmodel_name_or_path: {tiny_model}\n"
        "use_cpu: true\nbf16: false\n",
        "base.yaml",
    )
    arm = recipe(
        "base: ../base.yaml\nbeta: 0.5\nmax_steps: 1\nper_device_train_batch_size: 4\nnum_generations: 4\n"
        "max_completion_length: 4\nsave_strategy: 'no'\nreport_to: none\ngradient_checkpointing: false\n"
        f"task_level: 2\noutput_dir: {tmp_path / 'run'}\n"
    )
    from pathlib import Path

    script = Path(__file__).parent.parent / "recipes" / "grpo_variantA.py"
    status, log = forks.run(script, "--config", str(arm), "--learning_rate", "1e-4")
    assert status == 0, log[-2000:]
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert "base" not in config
    expected = {"beta": 0.5, "task_level": 2, "train_rows": 8, "learning_rate": 1e-4, "model_name_or_path": tiny_model}
    assert {key: config[key] for key in expected} == expected
