"""What a run did not write is neither overwritten nor deleted, whichever way the run is started."""

import shutil
from pathlib import Path

import pytest
from run_record import error_lines, hash_files, read_rows
from tiny_run import QUESTIONS

from trl_prorl.record.checkpoint_names import find_named
from trl_prorl.record.folders import RECORD, SAVED, RunFolders
from trl_prorl.record.processes import _remove_tokens, _write_tokens


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
    "adapter": {"adapter_config.json": "adapter_config.json"},
    "README": {"README.md": "README.md"},
    "config": {"config.json": "config.json"},
    "tokenizer": {"tokenizer.json": "tokenizer.json"},
    "recipe": {"config.yaml": "config.yaml"},
    "folder of the name of a checkpoint": {"checkpoint-1/notes.txt": "checkpoint-1"},
    "folder of the name of half a checkpoint": {"_incomplete-checkpoint-7/notes.txt": "_incomplete-checkpoint-7"},
    "folder of the name of an upload": {"_push-3/notes.txt": "_push-3"},
    "lock": {"run.lock": "run.lock"},
    "git checkout": {".git/HEAD": None, "README.md": "README.md", "pyproject.toml": None},
}
OF_THEIRS = {"_incomplete-x/notes.txt": "a", "checkpoint-best/notes.txt": "b", "tokenizers/a.py": "c", "data.bin": "d"}


def fill(folder, names, content="mine"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return hash_files(folder)


@pytest.mark.parametrize("case", FOREIGN)
def test_a_script_refuses_what_it_would_overwrite(by_script, tmp_path, case):
    out = tmp_path / "out"
    before = fill(out, FOREIGN[case])
    (line,) = by_script(out)
    named = ", ".join(sorted(name for name in FOREIGN[case].values() if name))
    assert line.startswith(f"output_dir='{out}' holds {named}: ")
    assert "Choose another output_dir" in line
    assert hash_files(out) == before


@pytest.mark.parametrize("case", ["weights", "git checkout"])
def test_a_recipe_refuses_it_before_a_model_is_loaded(by_recipe, tmp_path, case):
    out = tmp_path / "out"
    before = fill(out, FOREIGN[case])
    (line,) = by_recipe(out)
    assert f"output_dir='{out}' holds " in line
    assert hash_files(out) == before


@pytest.mark.parametrize("lora", [True, False])
def test_the_base_s_own_folder(by_recipe, by_script, tiny_model, tmp_path, lora):
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    before = hash_files(base)
    linked = tmp_path / "linked"
    linked.symlink_to(base)
    for out in (base, linked):
        (line,) = by_recipe(out, base, "--use_peft", str(lora).lower())
        assert "holds chat_template.jinja, config.json, generation_config.json, model.safetensors" in line
        assert by_script(out, str(base), lora=lora)[0].startswith(f"output_dir='{out}' holds ")
    assert hash_files(base) == before


def test_files_that_no_run_writes_stay_and_hinder_nothing(by_recipe, by_script, tmp_path):
    for number, train in enumerate((by_recipe, by_script)):
        out = tmp_path / str(number)
        before = fill(out, OF_THEIRS)
        assert train(out) == []
        assert len(read_rows(out)) == 2
        assert before.items() <= hash_files(out).items()


def test_a_folder_of_the_record(by_recipe, by_script, tmp_path):
    """`run_dir` is told by its own name; the base's folder may be one, because nothing there is overwritten."""
    record = tmp_path / "record"
    before = fill(record, ["env.json"])
    (line,) = by_recipe(tmp_path / "out", "embedded", "--run_dir", str(record))
    assert f"run_dir='{record}' holds env.json: " in line
    (line,) = by_script(tmp_path / "script", run_dir=str(record))
    assert line.startswith(f"run_dir='{record}' holds env.json: ")
    assert hash_files(record) == before


def test_a_record_elsewhere_says_nothing_about_an_output_dir_that_it_does_not_name(by_recipe, by_script, tmp_path):
    """A record in `run_dir` is that of a run with another `output_dir`: what lies in this one belongs to no run."""
    record = tmp_path / "record"
    other = tmp_path / "other"
    out = tmp_path / "out"
    assert by_script(other, run_dir=str(record)) == []
    before = fill(out, ["model.safetensors", "_incomplete-checkpoint-7/notes.txt"]) | hash_files(record)
    for lines in (by_script(out, run_dir=str(record)), by_recipe(out, "embedded", "--run_dir", str(record))):
        assert f"output_dir='{out}' holds _incomplete-checkpoint-7, model.safetensors: " in lines[0]
    assert hash_files(out) | hash_files(record) == before
    # A run that was killed in its first save has left half a checkpoint, and its record names the folder.
    shutil.rmtree(other)
    fill(other, ["_incomplete-checkpoint-1/checkpoint-1/adapter_config.json"])
    assert by_script(other, run_dir=str(record)) == []
    assert (record / "earlier-1").is_dir()


def test_a_resume_takes_no_record_that_is_not_its_run_s(by_recipe, by_script, tmp_path):
    """Given another `run_dir` than the run had: it would cut the record there to its own steps."""
    out = tmp_path / "out"
    other = tmp_path / "other"
    foreign = tmp_path / "foreign"
    assert by_script(out) == []
    assert by_script(other) == []
    before = hash_files(other, without=["run.lock"]) | fill(foreign, ["config.yaml", "env.json"])
    for run_dir, said in ((other, "holds the record of another run"), (foreign, "holds config.yaml, env.json: ")):
        by_either = by_script(out, resume=True, max_steps=3, run_dir=str(run_dir))
        by_either += by_recipe(out, "embedded", "--run_dir", str(run_dir), "--resume_from_checkpoint", "True")
        assert len(by_either) == 2
        assert all(f"run_dir='{run_dir}' {said}" in line for line in by_either)
    assert hash_files(other, without=["run.lock"]) | hash_files(foreign) == before
    moved = tmp_path / "moved"
    assert by_script(out, resume=True, max_steps=3, run_dir=str(moved)) == []
    assert by_script(out, resume=True, max_steps=4, run_dir=str(moved)) == []
    assert [row["step"] for row in read_rows(moved)] == [3, 4]


def test_files_for_which_processes_look_are_theirs_alone(tmp_path):
    before = fill(tmp_path, [".shared-notes", ".shared-0/a"])
    name = _write_tokens([tmp_path])
    assert name in hash_files(tmp_path)
    _remove_tokens([tmp_path])
    assert hash_files(tmp_path) == before


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
    """However the run is started, and before a model is loaded; a resume would write through some of these."""
    out = tmp_path / "out"
    mine = tmp_path / "mine"
    before = fill(mine, ["file", "completions/table"])
    assert by_script(out) == []
    of_run = hash_files(out)
    for name in ("README.md", "training_args.bin", "checkpoint-2/merges.txt", "run.lock", "completions"):
        link = out / name
        kept = link.read_bytes() if link.exists() else None
        link.unlink(missing_ok=True)
        link.symlink_to(mine / name if name == "completions" else mine / "file")
        lines = [*by_script(out, resume=True, max_steps=3), *by_script(out)]
        if name in ("README.md", "completions"):
            lines += by_recipe(out, "embedded", "--resume_from_checkpoint", "True")
            lines += by_recipe(tmp_path / "new", "embedded", "--run_dir", out)
        assert len(lines) >= 2
        assert all(f"_dir='{out}' contains the link '{name}', which leads out" in line for line in lines)
        link.unlink()
        if kept is not None:
            link.write_bytes(kept)
    (out / "checkpoint-2" / "merges.txt").symlink_to(mine / "file")
    (line,) = by_script(tmp_path / "other", resume=str(out / "checkpoint-2"))
    assert "contains the link 'merges.txt'" in line
    (out / "checkpoint-2" / "merges.txt").unlink()
    assert hash_files(mine) == before
    assert hash_files(out) == of_run
    linked = tmp_path / "linked"
    linked.symlink_to(out)
    assert by_script(linked, resume=True, max_steps=3) == []


def test_a_link_out_of_a_model_s_folder(by_recipe, by_script, tiny_model, tmp_path):
    """It is refused, but for the layout of the Hub's cache."""
    repo = tmp_path / "models--owner--name"
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    shutil.copytree(tiny_model, repo / "blobs")
    for path in (repo / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert by_recipe(tmp_path / "one", snapshot) == by_script(tmp_path / "two", str(snapshot)) == []
    other = tmp_path / "other"
    shutil.copytree(snapshot, other, symlinks=True)
    for path in other.iterdir():
        path.unlink()
        path.symlink_to(repo / "blobs" / path.name)
    lines = by_recipe(tmp_path / "three", other) + by_script(tmp_path / "four", str(other))
    assert len(lines) == 2
    assert all(f"={str(other)!r} contains the link 'chat_template.jinja'" in line for line in lines)


def completions_of(folder):
    """Return the bytes of every table of completions below a folder, in order."""
    return [path.read_bytes() for path in sorted(Path(folder).rglob("completions_*.parquet"))]


def test_every_later_start_logs_its_completions_and_keeps_the_earlier_ones(
    by_recipe, by_script, make_trainer, tmp_path
):
    """TRL makes their folder with the trainer, and it is set aside with the earlier run when the training begins."""
    cell = tmp_path / "cell"
    for starts in (1, 2, 3):
        assert by_script(cell, log_completions=True) == []
        assert len(completions_of(cell)) == 2 * starts
    first = completions_of(cell / "earlier-1")
    assert len(first) == len(completions_of(cell / "completions")) == 2

    twice = tmp_path / "twice"
    trainer = make_trainer(output_dir=str(twice), max_steps=2, log_completions=True)
    for _ in range(2):
        trainer.train()
    assert len(completions_of(twice / "completions")) == len(completions_of(twice / "earlier-1")) == 2

    killed = tmp_path / "killed"
    logs = ("--log_completions", "true", "--num_completions_to_print", "1", "--logging_steps", "1")
    assert by_script(killed, log_completions=True, save_strategy="no") == []  # but for the model that it saved
    for path in killed.iterdir():
        if path.name not in ("completions", "metrics.jsonl", "events.jsonl", "config.yaml", "env.json"):
            path.unlink()
    (line,) = by_script(killed, resume=True, log_completions=True)
    assert "holds no checkpoint" in line
    assert by_recipe(killed, "embedded", *logs, "--resume_from_checkpoint", "True") == []
    assert len(completions_of(killed / "completions")) == len(completions_of(killed / "earlier-1")) == 2

    evaluated = tmp_path / "evaluated"
    settings = {"log_completions": True, "max_steps": 2, "trainer_kwargs": QUESTIONS}
    trainer = make_trainer(output_dir=str(evaluated), **settings)
    trainer.evaluate()
    before = completions_of(evaluated)
    trainer.train()
    assert completions_of(evaluated / "earlier-1") == before != []


def test_a_run_that_goes_on_from_elsewhere_takes_no_other_run_s_folder(by_recipe, by_script, tmp_path):
    """Else its resume would cut the other run's record, and its checkpoints would replace the other's."""
    one = tmp_path / "one"
    other = tmp_path / "other"
    for out in (one, other):
        assert by_script(out) == []
    first = hash_files(other, without=["run.lock"])
    assert by_script(other, resume=str(one / "checkpoint-2"), max_steps=3) == []
    assert hash_files(other / "earlier-1") == first
    assert [row["step"] for row in read_rows(other)] == [3]

    one = tmp_path / "r1"
    other = tmp_path / "r2"
    for out in (one, other):
        assert by_recipe(out) == []
    first = hash_files(other)
    (line,) = by_recipe(other, "embedded", "--resume_from_checkpoint", str(one / "checkpoint-2"))
    assert "already holds a run" in line
    assert hash_files(other) == first


def test_a_resume_whose_end_would_replace_its_base(by_script, tiny_model, tmp_path):
    """A run that an earlier version began in the folder of its base."""
    base = tmp_path / "base"
    out = tmp_path / "out"
    shutil.copytree(tiny_model, base)
    assert by_script(out, str(base), lora=False) == []
    for path in (out / "checkpoint-2", out / "metrics.jsonl", out / "config.yaml", out / "env.json"):
        path.rename(base / path.name)
    before = hash_files(base)
    (line,) = by_script(base, str(base), lora=False, resume=True, max_steps=3)
    assert "is the folder of the model itself" in line
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


@pytest.mark.parametrize("key", ["output_dir", "run_dir"])
@pytest.mark.parametrize(
    ("what", "said"), [("file", "is a file"), ("link", "is a link to nothing"), ("file/run", "file is no folder")]
)
def test_what_is_no_folder_is_told_by_its_key(by_recipe, by_script, tmp_path, key, what, said):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    place = str(tmp_path / what)
    given = {"output_dir": tmp_path / "out", key: place}
    run_dir = {name: folder for name, folder in given.items() if name == "run_dir"}
    options = [part for name, folder in run_dir.items() for part in (f"--{name}", folder)]
    lines = [*by_recipe(given["output_dir"], "embedded", *options), *by_script(given["output_dir"], **run_dir)]
    assert len(lines) == 2
    for line in lines:
        assert line.removeprefix("error: ").startswith(f"{key}='{place}' ")
        assert said in line
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
