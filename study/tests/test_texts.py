"""Texts that a run's evaluation keeps, of models that are made by hand."""

import json
from types import SimpleNamespace

import pandas as pd

from study import texts
from study.texts import rows_of_split, text_rows


def point(step):
    return SimpleNamespace(step=step)


class FakeHeldOut:
    """Two prompts, the second a conversation; a text says its model's step, its split, and which sample it is."""

    rows = ({"prompt": "Sing."}, {"prompt": [{"role": "user", "content": "Say\nit."}]})
    config = None
    base = point(0)
    trained = point(40)

    def __init__(self, folder, split, prompts):
        assert prompts == 2
        self.split = split

    def samples(self, model, n, *, temperature=1.0):
        manner = "greedy" if temperature == 0 else "sampled"
        written = [f"{model.step} {self.split} {manner} {prompt}.{one}" for prompt in range(2) for one in range(n)]
        return pd.DataFrame({"completion": written, "correct": [text.endswith("1.0") for text in written]})


def test_a_row_for_each_text():
    rows = rows_of_split(FakeHeldOut(None, "test", 2), point(20), "test", 2, greedy=False)
    assert rows[2] == {
        **{"step": 20, "split": "test", "greedy": 0, "prompt": 1, "asked": json.dumps("Say\nit.")},
        **{"text": json.dumps("20 test sampled 1.0"), "right": 1},
    }
    assert [(row["prompt"], row["right"]) for row in rows] == [(0, 0), (0, 0), (1, 1), (1, 0)]
    greedy = rows_of_split(FakeHeldOut(None, "test", 2), point(20), "test", 2, greedy=True)
    assert [row["text"] for row in greedy] == [json.dumps(f"20 test greedy {prompt}.0") for prompt in range(2)]


def counts(rows):
    table = pd.DataFrame(rows).groupby(["step", "split", "greedy"]).size()
    return {key: int(count) for key, count in table.items()}


def test_which_texts_are_kept(monkeypatch):
    monkeypatch.setattr(texts, "HeldOut", FakeHeldOut)
    monkeypatch.setattr(texts, "checkpoint_points", lambda folder, config, wanted: [point(20)])
    plan = {"split": "test", "prompts": 2, "samples": 3, "drift_samples": 1, "texts": {"checkpoints": 0}}
    of_end = {(40, "test", 0): 6, (40, "test", 1): 2}
    of_base = {(0, "test", 0): 6, (0, "test", 1): 2}
    found = text_rows(None, plan)
    assert counts(found["texts"]) == of_end
    assert counts(found["base_texts"]) == of_base
    found = text_rows(None, {**plan, "texts": {"checkpoints": 2}})
    assert counts(found["texts"]) == {
        **of_end,
        **{(20, "test", 0): 2, (20, "test", 1): 2, (20, "validation", 0): 2, (40, "validation", 0): 2},
    }
    assert counts(found["base_texts"]) == of_base
