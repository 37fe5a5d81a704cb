"""What a run did not write is neither overwritten nor deleted, whichever way the run is started."""

import shutil
from pathlib import Path

import pytest
from run_record import error_lines, hash_files, read_rows, write_run
from trl import GRPOTrainer

from trl_prorl.run.folder import RunFolder


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes" / "grpo_variantA.py"
SMALL = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --train_rows 16 --lora_r 4 "
SMALL += "--disable_tqdm true --save_strategy steps --save_steps 1 --save_total_limit 1"


@pytest.fixture
def by_recipe(forks, tiny_model):
    """A function that trains a recipe in a folder: the lines that tell an error; none, and it must have trained."""

    def train(out, model=tiny_model, *options):
        argv = [*SMALL.split(), "--model_name_or_path", model, "--output_dir", out, *options]
        status, written = forks.run(SCRIPT, *argv)
        found = error_lines(written)
        assert status == (2 if found else 0) and "Traceback" not in written, written[-3000:]
        assert not found or "Loading weights" not in written  # told before a model is loaded
        return found

    return train


@pytest.fixture
def by_script(make_trainer):
    """As `by_recipe`, for a script."""

    def train(out, model=None, resume=None, **keys):
        settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "max_steps": 2, **keys}
        try:
            trainer = make_trainer(output_dir=str(out), model=model, **settings)
            trainer.train(resume_from_checkpoint=resume)
            trainer.save_model()
        except ValueError as error:
            return [str(error)]
        return []

    return train


# Files that a user may have in the folder, and what of them hinders a run.
FOREIGN = {
    "weights": {"model.safetensors": "model.safetensors"},
    "weights of many files": {"model-00001-of-00002.safetensors": "model-00001-of-00002.safetensors"},
    "folder of the name of a checkpoint": {"checkpoint-1/notes.txt": "checkpoint-1"},
    "folder of the name of half a checkpoint": {"_writing-7/notes.txt": "_writing-7"},
    "any folder": {"tokenizers/a.py": "tokenizers"},
    "card and recipe": {"README.md": "README.md", "config.yaml": "config.yaml", "notes.txt": None},
    "git checkout": {".git/HEAD": ".git", "README.md": "README.md", "pyproject.toml": None},
}


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return hash_files(folder)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("case", FOREIGN)
def test_a_new_run_needs_a_folder_without_files_of_a_run_and_without_folders(by_script, tmp_path, case, overwrite):
    out = tmp_path / "out"
    before = fill(out, FOREIGN[case])
    (line,) = by_script(out, overwrite=overwrite)
    named = ", ".join(sorted(name for name in FOREIGN[case].values() if name))
    assert f"output_dir='{out}' contains {named}" in line
    assert hash_files(out) == before


@pytest.mark.parametrize("cls", [None, GRPOTrainer], ids=["ours", "TRL's"])
def test_a_run_is_refused_and_overwrite_sets_its_whole_folder_aside(by_script, make_trainer, tmp_path, caplog, cls):
    out = tmp_path / "run"
    fill(out, ["train.log"])
    if cls is None:
        assert by_script(out) == []
    else:
        trainer = make_trainer(cls, output_dir=str(out), max_steps=2, save_strategy="steps", save_steps=1)
        trainer.train()
    first = hash_files(out)
    (line,) = by_script(out)
    assert f"output_dir='{out}' already contains a run" in line
    assert hash_files(out) == first
    for number in (1, 2):
        assert by_script(out, overwrite=True, max_steps=1) == []
        assert f"moved to {out}.{number}" in caplog.text
    aside = hash_files(Path(f"{out}.1"))
    assert aside.pop("set_aside") and aside == first
    assert [row["step"] for row in read_rows(out)] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1", "run.2"]
    assert not list(tmp_path.rglob("run.lock"))


def test_folders_that_cannot_be_set_aside(by_script, tmp_path, monkeypatch):
    out = tmp_path / "run"
    assert by_script(out, lora=False) == []
    deeper = shutil.copytree(out / "checkpoint-2", out / "keep" / "checkpoint-2")
    before = hash_files(out)

    def refused(needed, model=None, resume=None):
        (line,) = by_script(out, model, resume, overwrite=True, lora=False)
        assert f"output_dir='{out}' " in line and str(needed) in line
        assert hash_files(out) == before

    for model in (out, out / "checkpoint-2"):
        refused(model, str(model))
    refused(deeper, resume=str(deeper))
    monkeypatch.setenv("HOME", str(out))
    refused(out)
    monkeypatch.undo()
    monkeypatch.chdir(out / "checkpoint-2")
    refused(out / "checkpoint-2")


def test_a_link_out_of_a_run_s_folder_is_refused_by_name(by_recipe, by_script, tmp_path):
    """However the run is resumed: it would write through the link."""
    out = tmp_path / "out"
    mine = tmp_path / "mine"
    before = fill(mine, ["file"])
    assert by_script(out) == []
    (out / "README.md").unlink(missing_ok=True)
    (out / "README.md").symlink_to(mine / "file")
    (out / "checkpoint-2" / ".hidden").mkdir()
    (out / "checkpoint-2" / ".hidden" / "merges.txt").symlink_to(mine / "file")
    of_run = hash_files(out)
    lines = [
        *by_script(out, resume=True, max_steps=3),
        *by_script(out, resume=str(out / "checkpoint-2"), max_steps=3),
        *by_recipe(out, "embedded", "--resume_from_checkpoint", "True"),
    ]
    assert len(lines) == 3
    assert all(f"output_dir='{out}' contains 'README.md'" in line for line in lines)
    (line,) = by_script(tmp_path / "other", resume=str(out / "checkpoint-2"))
    assert "contains 'merges.txt'" in line
    assert hash_files(mine) == before
    assert hash_files(out) == of_run


def test_a_run_that_goes_on_from_elsewhere_takes_no_other_run_s_folder(by_script, tmp_path):
    """Else its resume would cut the other run's record, and its checkpoints would replace the other's."""
    one = tmp_path / "one"
    other = tmp_path / "other"
    for out in (one, other):
        assert by_script(out) == []
    first = hash_files(other)
    (line,) = by_script(other, resume=str(one / "checkpoint-2"), max_steps=3)
    assert f"output_dir='{other}' already contains a run" in line
    assert by_script(other, resume=str(one / "checkpoint-2"), max_steps=3, overwrite=True) == []
    assert hash_files(tmp_path / "other.1", without=["set_aside"]) == first
    assert [row["step"] for row in read_rows(other)] == [3]


@pytest.mark.parametrize("beside", ["another run", "a user's files"])
def test_a_checkpoint_goes_on_only_among_files_of_its_run(by_script, tmp_path, beside):
    out = tmp_path / "out"
    other = tmp_path / "other"
    assert by_script(out) == []
    if beside == "another run":
        assert by_script(other) == []
        shutil.rmtree(other / "checkpoint-2")
    else:
        fill(other, ["README.md", "notes.txt"])
    shutil.copytree(out / "checkpoint-2", other / "checkpoint-2")
    before = hash_files(other)
    for resume in (True, str(other / "checkpoint-2")):
        (line,) = by_script(other, resume=resume, max_steps=3)
        assert f"output_dir='{other}' " in line and "checkpoint-2" in line
        assert hash_files(other) == before
    alone = tmp_path / "alone"
    shutil.copytree(out / "checkpoint-2", alone / "last-checkpoint")
    (alone / "metrics.jsonl").touch()  # by a start that was killed
    for steps in (3, 4):
        assert by_script(alone, resume=str(alone / "last-checkpoint"), max_steps=steps) == []


def test_a_resume_keeps_folders_that_its_run_did_not_write(by_script, tmp_path):
    """A user's own `checkpoint-0`, one that lies where the next will be written, and another run's."""
    out = tmp_path / "out"
    other = tmp_path / "other"
    for folder in (out, other):
        assert by_script(folder) == []
    shutil.copytree(other / "checkpoint-2", out / "checkpoint-1")
    theirs = fill(out, ["checkpoint-0/a.txt", "checkpoint-3/a.txt", "_writing-x/a.txt"])
    theirs = {name: sha for name, sha in theirs.items() if name.endswith("a.txt")}
    assert by_script(out, resume=True, max_steps=4) == []
    left = hash_files(out)
    moved = {name.replace("checkpoint-3/a.txt", "abandoned-checkpoint-3/a.txt"): sha for name, sha in theirs.items()}
    assert moved.items() <= left.items()
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-0", "checkpoint-1", "checkpoint-4"]
    assert hash_files(out / "checkpoint-1") == hash_files(other / "checkpoint-2")


def test_leftovers_are_the_run_s_own(tmp_path):
    names = ["_writing-x/a", "_writing-checkpoint-2/a", "_push-mine/a", "elsewhere/a", ".mine.part"]
    write_run(tmp_path, metrics=[], env={"run_id": "1"})
    before = fill(tmp_path, [*names, "checkpoint-1/manifest.json"])
    fill(tmp_path, ["_writing-2/checkpoint-2/a", "_removing-1/a", "_push-2/a", ".env.json.0123456789abcdef.part"])
    whole = hash_files(tmp_path)
    folder = RunFolder(tmp_path)
    folder.settle()
    with pytest.raises(ValueError, match="already contains a run"):
        folder.begin(None, overwrite=False)
    assert hash_files(tmp_path) == whole
    folder.begin(tmp_path / "checkpoint-1", overwrite=False)
    assert hash_files(tmp_path) == before
    assert {name.split("/")[0] for name in names} < {path.name for path in tmp_path.iterdir()}
    assert not list(tmp_path.glob("_removing-*")) and not (tmp_path / "_writing-2").exists()


def test_a_link_is_moved_aside_and_the_files_of_its_run_stay_where_they_are(by_script, tmp_path):
    target = tmp_path / "disk" / "run"
    link = tmp_path / "link"
    assert by_script(target) == []
    before = hash_files(target)
    link.symlink_to(target)
    assert by_script(link, overwrite=True, max_steps=1) == []
    assert (tmp_path / "link.1").readlink() == target
    assert hash_files(target, without=["set_aside"]) == before
    assert not link.is_symlink() and [row["step"] for row in read_rows(link)] == [1]
