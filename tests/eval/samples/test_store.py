import json
import shutil
import threading

import pytest

from eval.run_folder.reading import write_json
from eval.samples.store import SampleStore, content_ids
from trl_prorl.errors import RunError


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


def test_a_neighbour_s_samples_are_taken_over(tmp_path):
    theirs = tmp_path / "A" / "samples"
    ours = tmp_path / "B" / "samples"
    SampleStore(theirs, "base", {"seed": 0}).add([record("a", 0)])
    ours.mkdir(parents=True)
    other = SampleStore(ours, "base", {"seed": 1})
    other.adopt([theirs, ours])
    assert other.frame().empty
    store = SampleStore(ours, "base", {"seed": 0})
    store.adopt([theirs, ours])
    assert len(store.frame()) == 1
    store.add([record("a", 1)])
    store.adopt([theirs])
    assert len(store.frame()) == 2
    assert len(SampleStore(theirs, "base", {"seed": 0}).frame()) == 1


def test_a_second_evaluation_waits_for_the_first(tmp_path, capsys):
    """Of the base, while the trained model is drawn: both may be taken over from a neighbour's, and by both."""
    theirs = SampleStore(tmp_path / "samples", "trained", {})
    ours = SampleStore(tmp_path / "samples", "base", {})
    order = []

    def evaluate():
        with ours.alone():
            order.append("ours")

    second = threading.Thread(target=evaluate)
    with theirs.alone():
        second.start()
        second.join(0.5)
        assert second.is_alive()
        order.append("theirs")
    second.join()
    with theirs.alone():
        assert order == ["theirs", "ours"]
    said = f"{tmp_path / 'samples'}: another evaluation draws samples there; waiting for its end.\n"
    assert capsys.readouterr().out == said


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
