import errno
import json
import os
import shutil
import threading

import pytest

from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.store import SampleStore, content_ids


def record(prompt, number, correct=True):
    row = {"prompt_id": prompt, "sample": number, "prompt": f"question {prompt}", "task": None, "level": None}
    return row | {"completion": f"{prompt}{number}", "ids": [number], "truncated": False, "correct": correct}


def test_what_is_added_comes_back_in_order(tmp_path):
    store = SampleStore(tmp_path, "base", {"seed": 0})
    assert store.frame().empty
    store.add([record("b", 1), record("b", 2)])
    store.add([record("a", 0, correct=False)])
    store.add([record("b", 0)])
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
    store.add([record("a", 0)])
    store.add([record("a", 1)])
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
    assert said == [f"{first.folder}: another evaluation is drawing these samples; waiting for it to finish."]


def test_samples_of_another_model_are_drawn_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "trl_prorl.record.folder_lock.print", lambda text, flush: pytest.fail("it waits"), raising=False
    )
    with SampleStore(tmp_path, "base", {}).exclusive(), SampleStore(tmp_path, "trained", {}).exclusive():
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_on_a_file_system_without_locks_an_evaluation_goes_on(tmp_path, monkeypatch, number):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    store = SampleStore(tmp_path, "base", {})
    with store.exclusive():
        store.add([record("a", 0)])
    assert len(store.frame()) == 1


def test_another_user_s_lock_keeps_nobody_out(tmp_path, monkeypatch):
    """It cannot be opened."""
    opens = os.open

    def refuse_lock(path, *args, **keys):
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opens(path, *args, **keys)

    monkeypatch.setattr(os, "open", refuse_lock)
    store = SampleStore(tmp_path, "base", {})
    with store.exclusive():
        store.add([record("a", 0)])
    assert len(store.frame()) == 1


def test_a_damaged_file_is_named(tmp_path):
    store = SampleStore(tmp_path, "base", {})
    store.add([record("a", 0)])
    (path,) = store.folder.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=f"{path.name} cannot be read.*remove it"):
        store.frame()


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
