import errno
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import trl_prorl.tasks
from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples import held_out
from trl_prorl.eval.samples.held_out import HeldOut, plan
from trl_prorl.eval.samples.store import SampleStore, content_ids
from trl_prorl.eval.samples.task_name import TaskName


@pytest.fixture
def calls(monkeypatch):
    """Prompts and samples of every call that draws."""
    made = []
    original = held_out.sample

    def spy(model, tokenizer, task, rows, n, **settings):
        made.append((len(rows), n))
        return original(model, tokenizer, task, rows, n, **settings)

    monkeypatch.setattr(held_out, "sample", spy)
    return made


def texts(samples):
    return samples["completion"].tolist()


@pytest.fixture
def drawn(run_dir, task):
    """A function: the texts of an evaluation's samples of the trained model, or of the base."""

    def draw(prompts, n, side="trained", temperature=None, **settings):
        evaluation = HeldOut(run_dir, "test", prompts, **settings)
        given = {} if temperature is None else {"temperature": temperature}
        return texts(evaluation.samples(getattr(evaluation, side), n, **given))

    return draw


@given(missing=st.dictionaries(st.integers(0, 40), st.integers(1, 300), max_size=20), batch_size=st.integers(1, 64))
def test_a_plan_draws_exactly_what_is_missing(missing, batch_size):
    drawn = dict.fromkeys(missing, 0)
    for places, count in plan(missing, batch_size):
        assert 1 <= len(places) * count <= batch_size
        for place in places:
            drawn[place] += count
    assert drawn == missing


def test_a_gpu_without_memory_for_a_batch_names_the_option_and_keeps_what_was_drawn(run_dir, task, calls, monkeypatch):
    draws = held_out.sample

    def full(model, tokenizer, task, rows, n, **settings):
        if calls and len(rows) * n > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return draws(model, tokenizer, task, rows, n, **settings)

    monkeypatch.setattr(held_out, "sample", full)
    large = HeldOut(run_dir, "test", 6, batch_size=8)
    with pytest.raises(RunError, match="--batch-size 8"):
        large.samples(large.trained, 4)
    smaller = HeldOut(run_dir, "test", 6, batch_size=4)
    assert len(smaller.samples(smaller.trained, 4)) == 24
    assert calls == [(2, 4)] + 4 * [(1, 4)]


def test_nothing_is_sampled_twice(drawn, calls):
    few = drawn(4, 2, batch_size=8)
    assert calls == [(4, 2)]
    assert drawn(4, 2, batch_size=8) == few
    assert calls == [(4, 2)]
    # More samples: what is there stays, and only the rest is drawn; more prompts: only the new ones.
    more = drawn(4, 5, batch_size=8)
    assert calls[1:] == [(2, 3), (2, 3)]
    assert [text for place, text in enumerate(more) if place % 5 < 2] == few
    assert drawn(5, 5, batch_size=8)[:20] == more
    assert calls[3:] == [(1, 5)]
    # Fewer: the first ones.
    assert drawn(4, 2, batch_size=8) == few
    assert len(calls) == 4
    # Every batch has a seed of its own; with one seed for all, the second half would repeat the first.
    both = drawn(2, 40, "base", batch_size=20)
    assert both[:20] != both[20:40]


def test_a_damaged_file_is_removed_as_its_line_says_and_its_samples_are_drawn_again(run_dir, task, calls, monkeypatch):
    """The first of two batches of each prompt: what lies behind the gap is no reason to draw too few."""
    monkeypatch.setattr(held_out.SampleStore, "merge", lambda store: None)
    evaluation = HeldOut(run_dir, "test", 2, batch_size=2)
    whole = texts(evaluation.samples(evaluation.trained, 4))
    assert len(calls) == 4
    store = evaluation.store(evaluation.trained, evaluation.sampling)
    (first,) = store.folder.glob(f"part-{evaluation.prompt_ids[0]}-0000.parquet")
    first.write_bytes(b"damaged")
    with pytest.raises(RunError, match="remove it"):
        evaluation.samples(evaluation.trained, 4)
    first.unlink()
    assert texts(evaluation.samples(evaluation.trained, 4)) == whole


def test_other_settings_and_weights_are_sampled_anew(run_dir, drawn, calls):
    sampled = drawn(3, 2)
    for number, change in enumerate(({"temperature": 0.0}, {"max_new_tokens": 3}, {"seed": 1}), start=2):
        drawn(3, 2, **change)
        assert len(calls) == number
    assert drawn(3, 2) == sampled
    assert len(calls) == 4
    path = run_dir / "adapter_model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(path).items()}, path)
    drawn(3, 2)
    drawn(3, 2, "base")
    assert len(calls) == 6


def test_a_killed_evaluation_goes_on(forks, run_dir, base, tmp_path):
    """Killed from outside while it samples; its samples and the rest are those of an undisturbed evaluation."""
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump({**config, "task": "parity", "task_level": 2}))
    arguments = ["--run", str(run_dir), "--prompts", "10", "--n", "4", "--k", "1", "--batch-size", "4"]
    process = forks.start(run="-m", argv=["eval.passk", *arguments], log=str(tmp_path / "log"))
    while len(list(run_dir.glob("samples/base-*/part-*.parquet"))) < 2:
        os.kill(process, 0)  # it has not ended
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    assert forks.status() == -signal.SIGKILL
    resumed = HeldOut(run_dir, "test", 10, batch_size=4)
    kept = resumed.store(resumed.base, resumed.sampling).frame()
    assert 0 < len(kept) < 40
    whole = resumed.samples(resumed.base, 4)

    undisturbed = run_dir.parent / "elsewhere" / "A"
    undisturbed.parent.mkdir()
    shutil.copytree(run_dir, undisturbed, ignore=shutil.ignore_patterns("samples"))
    control = HeldOut(undisturbed, "test", 10, batch_size=4)
    assert texts(control.samples(control.base, 4)) == texts(whole)


@pytest.fixture
def beside(run_dir, task, tmp_path):
    """A copy of the run in the same folder, whose samples of both models are on disk: its evaluation of 6 prompts."""
    shutil.copytree(run_dir, tmp_path / "B")
    evaluation = HeldOut(tmp_path / "B", "test", 6)
    for point in (evaluation.base, evaluation.trained):
        evaluation.samples(point, 4)
    return evaluation


def test_the_base_s_samples_of_a_run_beside_are_named_and_judged_again(beside, run_dir, calls, capsys):
    honest = beside.samples(beside.base, 4)
    assert 0 < honest["correct"].mean() < 1
    store = beside.store(beside.base, beside.sampling)
    store.replace(store.frame().assign(correct=True, answer="mine"))
    ours = HeldOut(run_dir, "test", 7)
    taken = ours.samples(ours.base, 4)
    pd.testing.assert_frame_equal(taken[taken["prompt_id"].isin(beside.prompt_ids)].reset_index(drop=True), honest)
    assert str(store.folder) in capsys.readouterr().out
    assert calls == [(1, 4)]  # of the prompt that is not there
    ours.samples(ours.trained, 4)
    assert calls == [(1, 4), (7, 4)]  # what a run trained is its own


def test_samples_beside_that_are_not_of_these_prompts_and_settings_are_drawn(beside, run_dir, calls, tmp_path):
    store = beside.store(beside.base, beside.sampling)
    honest = store.frame()
    samples = store.folder / "samples.parquet"

    def link():
        samples.rename(tmp_path / "elsewhere.parquet")
        samples.symlink_to(tmp_path / "elsewhere.parquet")

    damages = {
        "other prompts": lambda: store.replace(honest.assign(prompt="another")),
        "no completions": lambda: store.replace(honest.assign(completion=None)),
        "damaged": lambda: samples.write_bytes(b"damaged"),
        "a link": link,
        "other settings": lambda: (store.folder / "_settings.json").write_text("{}"),
    }
    for name, damage in damages.items():
        samples.unlink(missing_ok=True)
        store.replace(honest)
        damage()
        shutil.rmtree(run_dir / "samples", ignore_errors=True)
        calls.clear()
        ours = HeldOut(run_dir, "test", 6)
        ours.samples(ours.base, 4)
        assert calls == [(6, 4)], name


def test_names_of_tasks():
    assert TaskName.parse("parity@2") == TaskName("parity", 2)
    assert TaskName.parse("gsm8k=/some/where") == TaskName("gsm8k", path="/some/where")


def test_verdicts_of_other_graders_are_given_anew_and_nothing_is_sampled(run_dir, task, calls, monkeypatch):
    point = HeldOut(run_dir, "test", 4).trained
    before = HeldOut(run_dir, "test", 4).samples(point, 3)
    drawn = len(calls)
    monkeypatch.setattr(type(task), "verify_many", lambda self, texts, rows: [True] * len(texts))
    monkeypatch.setattr(type(task), "answer_of", lambda self, text, row: None if len(text) % 2 else f"of {text}")
    assert HeldOut(run_dir, "test", 4).samples(point, 3)["correct"].tolist() == before["correct"].tolist()
    monkeypatch.setattr("trl_prorl.eval.samples.held_out.grader_version", lambda: "another")
    after = HeldOut(run_dir, "test", 4).samples(point, 3)
    assert after["correct"].all()
    assert not before["correct"].all()
    assert len(calls) == drawn
    assert texts(after) == texts(before)
    assert after["answer"].tolist() == [None if len(text) % 2 else f"of {text}" for text in texts(after)]
    monkeypatch.setattr(type(task), "verify_many", None)
    assert HeldOut(run_dir, "test", 4).samples(point, 3)["correct"].all()  # they are kept


def test_the_graders_version_is_of_all_their_files(tmp_path, monkeypatch):
    """Those of the locked workers too, which stand in a folder of their own."""
    package = tmp_path / "tasks"
    shutil.copytree(Path(trl_prorl.tasks.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(trl_prorl.tasks, "__file__", str(package / "__init__.py"))
    versions = set()
    for file in ("math.py", "isolated/math_worker.py", "isolated/rg_worker.py"):
        (package / file).write_text((package / file).read_text() + "# another\n")
        held_out.grader_version.cache_clear()
        versions.add(held_out.grader_version())
    held_out.grader_version.cache_clear()
    assert len(versions) == 3


def sample_row(prompt, number, correct=True):
    row = {"prompt_id": prompt, "sample": number, "prompt": f"question {prompt}", "task": None, "level": None}
    return row | {"completion": f"{prompt}{number}", "ids": [number], "truncated": False, "correct": correct}


def test_what_is_added_to_a_store_comes_back_in_order(tmp_path):
    store = SampleStore(tmp_path, "base", {"seed": 0})
    assert store.frame().empty
    store.add([sample_row("b", 1), sample_row("b", 2)])
    store.add([sample_row("a", 0, correct=False)])
    store.add([sample_row("b", 0)])
    for _ in range(2):
        frame = store.frame()
        assert list(zip(frame["prompt_id"], frame["sample"], strict=True)) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
        assert frame["correct"].tolist() == [False, True, True, True]
        assert frame["ids"].map(list).tolist() == [[0], [0], [1], [2]]
        store.merge()
        assert [path.name for path in store.folder.glob("*.parquet")] == ["samples.parquet"]
    assert json.loads((store.folder / "_settings.json").read_text()) == {"seed": 0}


def test_a_stop_in_the_middle_of_a_merge_counts_nothing_twice(tmp_path):
    store = SampleStore(tmp_path, "base", {})
    store.add([sample_row("a", 0)])
    store.add([sample_row("a", 1)])
    shutil.copytree(store.folder, tmp_path / "before")
    store.merge()
    for part in (tmp_path / "before").glob("part-*"):
        shutil.copy(part, store.folder)
    (store.folder / ".part-x.parquet.part").write_bytes(b"half")
    assert store.frame()["sample"].tolist() == [0, 1]
    store.merge()
    assert [path.name for path in store.folder.glob("*.parquet")] == ["samples.parquet"]


def test_a_second_evaluation_waits_for_the_first(tmp_path, monkeypatch):
    """It says so, and goes on when the first has ended."""
    first, second = (SampleStore(tmp_path / "samples", "base", {}) for _ in range(2))
    waits = threading.Event()
    said = []
    monkeypatch.setattr(
        "trl_prorl.record.folder_lock.print", lambda text, flush: (said.append(text), waits.set()), raising=False
    )
    order = []

    def evaluate():
        with second.exclusive():
            order.append("second")

    thread = threading.Thread(target=evaluate, daemon=True)
    with first.exclusive():
        thread.start()
        assert waits.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert str(first.folder) in said[0]


def test_on_a_file_system_without_locks_an_evaluation_goes_on(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    store = SampleStore(tmp_path, "base", {})
    with store.exclusive():
        store.add([sample_row("a", 0)])
    assert len(store.frame()) == 1


def test_rows_are_named_by_content():
    first = {"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}
    second = {**first, "answer": "3"}
    names = content_ids([first, second, first])
    assert names[0] == content_ids([dict(reversed(first.items()))])[0]
    assert len(set(names)) == 3
    assert names[2].startswith(names[0])


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "passk.json"
    write_json(path, {"n": 1})

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
