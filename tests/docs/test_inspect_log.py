"""docs/examples/inspect_log.py: stored samples as a log that Inspect's own reader opens."""

import sys

import pytest
from doc_pages import ROOT

from trl_prorl.eval.samples.store import SampleStore


def test_stored_samples_are_a_log_of_inspect(tmp_path, monkeypatch, capsys):
    log = pytest.importorskip("inspect_ai.log", reason="pip install inspect-ai")
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    import inspect_log

    row = {"prompt": "321>", "task": "reverse_digits", "level": 3, "ids": [1, 2], "grader": "g"}
    store = SampleStore(tmp_path / "A" / "samples", "step-40", {"task": ["reverse_digits", 3, {}], "seed": 0})
    for number, (text, answer, correct, cut) in enumerate([("123", "123", True, False), (" ", None, False, True)]):
        own = {"completion": text, "answer": answer, "correct": correct, "truncated": cut}
        store.add([{**row, **own, "prompt_id": prompt, "sample": number} for prompt in ("p", "q")])
    monkeypatch.setattr(sys, "argv", ["inspect_log.py", "--run", str(tmp_path / "A"), "--out", str(tmp_path / "logs")])
    inspect_log.main()
    read = log.read_eval_log(capsys.readouterr().out.strip())
    assert (read.status, read.eval.task, read.eval.model) == ("success", "reverse_digits", "A/step-40")
    assert read.eval.config.epochs == 2
    assert read.results.scores[0].metrics["accuracy"].value == 0.5
    found = [(one.id, one.epoch, one.input, one.output.completion, one.output.stop_reason) for one in read.samples]
    assert sorted(found) == sorted(
        (prompt, epoch, "321>", text, stop)
        for prompt in ("p", "q")
        for epoch, text, stop in [(1, "123", "stop"), (2, " ", "max_tokens")]
    )
    assert {(one.epoch, one.scores["verifier"].value, one.scores["verifier"].answer) for one in read.samples} == (
        {(1, "C", "123"), (2, "I", None)}
    )
    with pytest.raises(SystemExit, match="trl-prorl passk"):
        monkeypatch.setattr(sys, "argv", ["inspect_log.py", "--run", str(tmp_path)])
        inspect_log.main()
