"""What a run did not write is neither overwritten nor deleted, whichever way the run is started."""

import shutil
from pathlib import Path

import pytest
from run_record import error_lines, hash_files, read_rows
from tiny_run import QUESTIONS

from trl_prorl.run_folder import RECORD, SAVED, RunFolders, find_named


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


# Files that a user may have in the folder, and those of them that a run would overwrite or delete.
FOREIGN = {
    "weights": {"model.safetensors": "model.safetensors"},
    "weights of many files": {"model-00001-of-00002.safetensors": "model-00001-of-00002.safetensors"},
    "folder of the name of a checkpoint": {"checkpoint-1/notes.txt": "checkpoint-1"},
    "folder of the name of half a checkpoint": {"_incomplete-checkpoint-7/notes.txt": "_incomplete-checkpoint-7"},
    "lock": {"run.lock": "run.lock"},
    "git checkout": {".git/HEAD": None, "README.md": "README.md", "pyproject.toml": None},
}
OF_THEIRS = {"_incomplete-x/notes.txt": "a", "checkpoint-best/notes.txt": "b", "tokenizers/a.py": "c", "data.bin": "d"}


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return hash_files(folder)


@pytest.mark.parametrize("case", FOREIGN)
def test_a_script_refuses_what_it_would_overwrite(by_script, tmp_path, case):
    out = tmp_path / "out"
    before = fill(out, FOREIGN[case])
    (line,) = by_script(out)
    named = ", ".join(sorted(name for name in FOREIGN[case].values() if name))
    assert line.startswith(f"output_dir='{out}' contains {named}: ")
    assert hash_files(out) == before


def test_the_base_s_own_folder(by_recipe, by_script, tiny_model, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    before = hash_files(base)
    linked = tmp_path / "linked"
    linked.symlink_to(base)
    for out in (base, linked):
        assert len(by_script(out, str(base), lora=False)) == 1
    (line,) = by_recipe(base, base)
    assert f"output_dir='{base}' contains " in line
    assert hash_files(base) == before


def test_files_that_no_run_writes_stay_and_hinder_nothing(by_script, tmp_path):
    before = fill(tmp_path, OF_THEIRS)
    assert by_script(tmp_path) == []
    assert len(read_rows(tmp_path)) == 2
    assert before.items() <= hash_files(tmp_path).items()


def test_a_folder_of_the_record(by_script, tmp_path):
    record = tmp_path / "record"
    before = fill(record, ["env.json"])
    (line,) = by_script(tmp_path / "script", run_dir=str(record))
    assert line.startswith(f"run_dir='{record}' contains env.json: ")
    assert hash_files(record) == before


def test_a_record_elsewhere_says_nothing_about_an_output_dir_that_it_does_not_name(by_script, tmp_path):
    """A record in `run_dir` is that of a run with another `output_dir`: what lies in this one belongs to no run."""
    record = tmp_path / "record"
    out = tmp_path / "out"
    assert by_script(tmp_path / "other", run_dir=str(record)) == []
    before = fill(out, ["model.safetensors", "_incomplete-checkpoint-7/notes.txt"]) | hash_files(record)
    (line,) = by_script(out, run_dir=str(record))
    assert f"output_dir='{out}' contains _incomplete-checkpoint-7, model.safetensors: " in line
    assert hash_files(out) | hash_files(record) == before


def test_an_earlier_run_is_told_by_the_folder_that_has_it(by_script, tmp_path, caplog):
    record = tmp_path / "record"
    out = tmp_path / "out"
    assert by_script(tmp_path / "other", run_dir=str(record)) == []
    with pytest.raises(ValueError, match=f"run_dir='{record}' already contains a run"):
        RunFolders(out, record).check_new()
    assert by_script(out, run_dir=str(record)) == []
    (line,) = [line for line in caplog.messages if "earlier run" in line]
    assert f"run_dir='{record}'" in line and str(record / "earlier-1") in line
    assert str(out) not in line
    with pytest.raises(ValueError, match=f"output_dir='{out}' already contains a run"):
        RunFolders(out, record).check_new()


def test_a_resume_takes_no_record_that_is_not_its_run_s(by_script, tmp_path):
    """Given another `run_dir` than the run had: it would cut the record there to its own steps."""
    out = tmp_path / "out"
    other = tmp_path / "other"
    assert by_script(out) == []
    assert by_script(other) == []
    fill(tmp_path / "foreign", ["config.yaml", "env.json"])
    (tmp_path / "without an id").mkdir()
    (tmp_path / "without an id" / "metrics.jsonl").write_text('{"step": 9}\n')
    before = hash_files(tmp_path, without=["out", "run.lock"])
    for name in ("other", "foreign", "without an id"):
        (line,) = by_script(out, resume=True, max_steps=3, run_dir=str(tmp_path / name))
        assert f"run_dir='{tmp_path / name}' " in line
    assert hash_files(tmp_path, without=["out", "run.lock"]) == before
    moved = tmp_path / "moved"
    assert by_script(out, resume=True, max_steps=3, run_dir=str(moved)) == []
    assert by_script(out, resume=True, max_steps=4, run_dir=str(moved)) == []
    assert [row["step"] for row in read_rows(moved)] == [3, 4]


def test_what_a_run_writes_is_known(make_trainer, tmp_path):
    """So that it is protected where it is somebody else's, and set aside with an earlier run."""
    settings = {
        "beta": 0.1,
        "ref_reset_every": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "log_completions": True,
    }
    for lora in (True, False):
        out = tmp_path / str(lora)
        trainer = make_trainer(output_dir=str(out), lora=lora, **settings, trainer_kwargs=QUESTIONS)
        trainer.train()
        trainer.save_model()
        trainer.save_state()
        assert sorted(out.iterdir()) == find_named(out, (*RECORD, *SAVED))
        assert (out / "ref").is_dir() == lora
        assert (out / "completions").is_dir()


def test_a_link_out_of_a_run_s_folder_is_refused_by_name(by_recipe, by_script, tmp_path):
    """However the run is started: a resume would write through it."""
    out = tmp_path / "out"
    mine = tmp_path / "mine"
    before = fill(mine, ["file"])
    assert by_script(out) == []
    (out / "README.md").unlink(missing_ok=True)
    (out / "README.md").symlink_to(mine / "file")
    (out / "checkpoint-2" / "merges.txt").symlink_to(mine / "file")
    of_run = hash_files(out)
    lines = [
        *by_script(out, resume=True, max_steps=3),
        *by_script(out),
        *by_script(tmp_path / "new", run_dir=str(out)),
        *by_recipe(out, "embedded", "--resume_from_checkpoint", "True"),
    ]
    assert len(lines) == 4
    assert all(f"_dir='{out}' contains the link 'README.md'" in line for line in lines)
    (line,) = by_script(tmp_path / "other", resume=str(out / "checkpoint-2"))
    assert "contains the link 'merges.txt'" in line
    assert hash_files(mine) == before
    assert hash_files(out) == of_run


def test_a_link_out_of_a_model_s_folder_is_refused(by_script, tiny_model, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for path in Path(tiny_model).iterdir():
        (model / path.name).symlink_to(path)
    (line,) = by_script(tmp_path / "out", str(model))
    assert "contains the link 'chat_template.jinja'" in line


def completions_of(folder):
    """Return the bytes of every table of completions below a folder, in order."""
    return [path.read_bytes() for path in sorted(Path(folder).rglob("completions_*.parquet"))]


def test_every_later_start_logs_its_completions_and_keeps_the_earlier_ones(make_trainer, tmp_path):
    """TRL makes their folder with the trainer, and it is set aside with the earlier run when the training begins."""
    settings = {"output_dir": str(tmp_path), "log_completions": True, "max_steps": 2, "trainer_kwargs": QUESTIONS}
    trainer = make_trainer(**settings)
    trainer.evaluate()
    evaluated = completions_of(tmp_path)
    for _ in range(2):
        trainer.train()
    make_trainer(**settings).train()
    assert completions_of(tmp_path / "earlier-1") == evaluated != []
    for part in ("earlier-2", "earlier-3", "completions"):
        assert len(completions_of(tmp_path / part)) == 2


def test_a_run_that_goes_on_from_elsewhere_takes_no_other_run_s_folder(by_script, tmp_path):
    """Else its resume would cut the other run's record, and its checkpoints would replace the other's."""
    one = tmp_path / "one"
    other = tmp_path / "other"
    for out in (one, other):
        assert by_script(out) == []
    first = hash_files(other, without=["run.lock"])
    assert by_script(other, resume=str(one / "checkpoint-2"), max_steps=3) == []
    assert hash_files(other / "earlier-1") == first
    assert [row["step"] for row in read_rows(other)] == [3]


def test_a_resume_whose_end_would_replace_its_base(by_script, tiny_model, tmp_path):
    """The checkpoints of a run were moved into the folder of its base."""
    base = tmp_path / "base"
    out = tmp_path / "out"
    shutil.copytree(tiny_model, base)
    assert by_script(out, str(base), lora=False) == []
    for path in (out / "checkpoint-2", out / "metrics.jsonl", out / "config.yaml", out / "env.json"):
        path.rename(base / path.name)
    before = hash_files(base)
    assert len(by_script(base, str(base), lora=False, resume=True, max_steps=3)) == 1
    assert hash_files(base) == before


def test_a_resume_keeps_folders_that_are_not_of_the_run(by_script, tmp_path):
    """A user's own `checkpoint-1`, another run's `checkpoint-2`, and one that lies where the next will be written."""
    out = tmp_path / "out"
    other = tmp_path / "other"
    assert by_script(out) == []
    assert by_script(other) == []
    (out / "checkpoint-2").rename(out / "checkpoint-3")  # makes room, and is put back
    shutil.copytree(other / "checkpoint-2", out / "checkpoint-1")
    (out / "checkpoint-3").rename(out / "checkpoint-2")
    theirs = fill(out, ["checkpoint-0/a.txt", "checkpoint-3/a.txt", "_incomplete-x/a.txt"])
    theirs = {name: sha for name, sha in theirs.items() if name.endswith("a.txt") or "checkpoint-1/" in name}
    assert by_script(out, resume=True, max_steps=4) == []
    left = hash_files(out)
    moved = {name.replace("checkpoint-3/a.txt", "abandoned-checkpoint-3/a.txt"): sha for name, sha in theirs.items()}
    assert moved.items() <= left.items()
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-0", "checkpoint-1", "checkpoint-4"]


def test_a_first_checkpoint_that_was_cut_short_is_a_run_s_own(tmp_path):
    """Of a run whose log files are elsewhere: it was killed before it had anything else in its folder."""
    fill(tmp_path / "out", ["_incomplete-checkpoint-2/checkpoint-2/model.safetensors"])
    RunFolders(tmp_path / "out", tmp_path / "record").check_nothing_foreign()


def test_leftovers_are_the_run_s_own(tmp_path):
    names = ["_incomplete-x/a", "_incomplete-checkpoint-best/a", "_push-mine/a", "elsewhere/a"]
    before = fill(tmp_path, names)
    fill(tmp_path, ["_incomplete-checkpoint-2/a", "_incomplete-old-checkpoint-1/a", "_push-2/a"])
    (tmp_path / "_incomplete-old-checkpoint-3").symlink_to(tmp_path / "elsewhere")
    RunFolders(tmp_path).clear_leftovers()
    assert hash_files(tmp_path) == before
    assert not list(tmp_path.glob("_incomplete-old*"))


def test_a_checkpoint_that_was_moved_and_linked_is_unlinked_and_not_removed(tmp_path):
    for step in (1, 2):
        fill(tmp_path, [f"disk/{step}/manifest.json"])
        (tmp_path / f"checkpoint-{step}").symlink_to(tmp_path / "disk" / str(step))
    RunFolders(tmp_path).remove_oldest(2, 1, None)
    RunFolders(tmp_path).clear_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "disk"]
    assert len(hash_files(tmp_path / "disk")) == 2


@pytest.mark.parametrize("what", ["file", "link", "file/run"])
def test_what_is_no_folder_is_told_by_its_key(by_script, tmp_path, what):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    place = str(tmp_path / what)
    (line,) = by_script(place)
    assert line.startswith(f"output_dir='{place}' ")
    (line,) = by_script(tmp_path / "out", run_dir=place)
    assert line.startswith(f"run_dir='{place}' ")
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
