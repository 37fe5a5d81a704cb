"""What a run begins with: anew, from its checkpoint, or with its evaluation; and what the runner makes of failures."""

import json
from dataclasses import replace

import pytest

from study import runner as runner_module
from study.frozen import check_at_frozen_commit, commit_tables, frozen_commit, worktree
from study.matrix import read_matrix
from study.runner import RunFiles, Runner, make_run
from study.tables import FOLDER
from trl_prorl.errors import InputError, RunError


@pytest.fixture
def job(study, tmp_path, monkeypatch):
    """A function: the files of the first run, of 600 steps, and its first command, which is not started."""
    (first, *_) = read_matrix(study()).runs
    monkeypatch.setattr(runner_module, "run_process", lambda command, *rest: iter([command]))

    def begin(steps=600, evaluation=None, **keys):
        evaluation = {**first.evaluation, **(evaluation or {})}
        key = first.key._replace(steps=steps)
        recipe = {**first.recipe, **keys}
        run = replace(first, key=key, recipe=recipe, evaluation=evaluation)
        files = RunFiles(tmp_path / "runs", run.key)
        return files, next(make_run(run, tmp_path / "runs", tmp_path / "code"), None)

    return begin


def test_it_begins_anew_without_a_checkpoint(job):
    files, command = job()
    assert command[0].endswith("grpo_variantA.py")
    assert "--resume_from_checkpoint" not in command
    (files.folder / "half").mkdir(parents=True)
    assert "--resume_from_checkpoint" not in job()[1]
    assert not files.folder.exists()


def test_it_goes_on_from_its_checkpoint(job):
    files, _ = job()
    assert "save_steps: 100" in files.recipe.read_text()
    assert "save_steps" not in job(steps=240)[0].recipe.read_text()
    (files.folder / "checkpoint-100").mkdir(parents=True)
    assert job()[1][-2:] == ["--resume_from_checkpoint", "True"]
    assert files.folder.exists()


def test_a_block_says_how_many_checkpoints_its_runs_keep(job):
    for steps, checkpoints, every in ((600, 12, 50), (12, 3, 4)):
        files, _ = job(steps, {"checkpoints": checkpoints})
        recipe = files.recipe.read_text()
        assert f"save_steps: {every}\n" in recipe
        assert "save_strategy: steps" in recipe


def test_a_run_whose_texts_are_kept_keeps_the_checkpoints_that_they_need(job):
    files, _ = job(160, {"texts": {"checkpoints": 8}})
    assert "save_steps: 20\n" in files.recipe.read_text()
    files, _ = job(160, {"texts": {"checkpoints": 0}})
    assert "save_steps" not in files.recipe.read_text()


def test_what_the_study_trains_gets_its_recipe_and_begins_anew(job):
    files, command = job(600, {"checkpoints": 12}, trained_by="study.fine_tuning")
    assert command == ["-m", "study.fine_tuning", str(files.recipe)]
    recipe = files.recipe.read_text()
    assert "trained_by" not in recipe
    assert "save_steps" not in recipe
    assert "save_strategy: 'no'" in recipe
    assert f"output_dir: {files.folder}\n" in recipe


def test_another_recipe_begins_anew(job):
    files, _ = job()
    (files.folder / "checkpoint-100").mkdir(parents=True)
    (files.folder / "adapter_model.safetensors").touch()
    files.rows.write_text("{}")
    assert job()[1] is None  # nothing is left to do
    assert "--resume_from_checkpoint" not in job(beta=0.5)[1]
    assert not files.rows.exists()


@pytest.mark.parametrize("how", ["trained", "stopped at NaN"])
def test_what_is_trained_is_evaluated(job, how):
    files, _ = job()
    files.folder.mkdir(parents=True)
    if how == "trained":
        (files.folder / "adapter_model.safetensors").touch()
    else:
        event = {"event": "nonfinite", "step_applied": 3, "action": "stop"}
        (files.folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    _, command = job()
    plan = json.loads(files.plan.read_text())
    assert command == ["-m", "study.evaluate", str(files.plan)]
    assert (plan["samples"], plan["others"]) == (8, [])


@pytest.fixture
def failing(study, git, monkeypatch):
    """A checkout of three arms, whose training is a process that fails with a line."""
    root = study()
    path = root / "study" / "recipes" / "matrix.yaml"
    path.write_text(path.read_text().replace("[[0, 1]]", "[[0, 1], [0, 2]]"))
    script = root / "recipes" / "grpo_variantA.py"
    script.parent.mkdir()
    script.write_text("import sys\nprint('warning')\nprint('error: beta=1.0 is one too many')\nsys.exit(2)\n")
    (root / ".gitignore").write_text("runs/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "x")
    monkeypatch.setattr(runner_module, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(runner_module, "check_bases", lambda tables, runs, code: set())
    return root


def test_a_failure_is_told_and_the_others_go_on_until_all_fail(failing, capsys):
    runner = Runner(failing, read_matrix(failing), read_matrix(failing), jobs=1, commits=False)
    told = "3 runs failed. reverse_digits, plain, base seed 0, seed 1, 3 steps: error: beta=1"
    with pytest.raises(RunError, match=told):
        runner.run()  # of four: after three in a row the others would fail too
    assert capsys.readouterr().out.count("failed: error: beta=1.0 is one too many") == 3


def test_a_worktree_is_the_commit_whatever_was_there(failing, git, tmp_path):
    commit = git(failing, "rev-parse", "HEAD")
    place = failing / "runs" / "code"
    assert worktree(failing, commit, place) == place
    (place / "recipes" / "grpo_variantA.py").write_text("changed")
    worktree(failing, commit, place)
    assert "one too many" in (place / "recipes" / "grpo_variantA.py").read_text()
    (place / ".git").unlink()  # as a power loss leaves it
    worktree(failing, commit, place)
    assert git(place, "rev-parse", "HEAD") == commit
    assert git(place, "status", "--porcelain") == ""


def test_the_commit_is_noted_and_moves_only_when_asked(failing, git):
    first = git(failing, "rev-parse", "HEAD")
    assert frozen_commit(failing, failing / FOLDER) == first
    git(failing, "config", "user.name", "Study")
    git(failing, "config", "user.email", "study@example.org")
    assert commit_tables(failing / FOLDER, "Study: the commit")
    assert not commit_tables(failing / FOLDER, "Study: nothing new")
    second = git(failing, "rev-parse", "HEAD")
    assert second != first
    assert frozen_commit(failing, failing / FOLDER) == first
    assert frozen_commit(failing, failing / FOLDER, "HEAD") == second
    assert frozen_commit(failing, failing / FOLDER) == second
    (failing / "study" / "tables" / "frozen_at").write_text("0" * 40)
    with pytest.raises(InputError, match="frozen_at: 000000000000, and .* is at .* --commit HEAD"):
        check_at_frozen_commit(failing, failing / FOLDER)
    with pytest.raises(InputError, match="frozen_at: 0000.*this repository has no such commit; fetch it"):
        frozen_commit(failing, failing / FOLDER)
