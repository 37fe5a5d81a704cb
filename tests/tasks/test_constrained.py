import json

import pytest

from trl_prorl.tasks import get_task


def row(**form):
    return {"answer": "", "form": json.dumps(form)}


FORMS = {
    "initials": row(kind="initials", letters="bqt"),
    "keys": row(kind="keys", keys="ak"),
    "lengths": row(kind="lengths", count=3, length=4, letter="k"),
}
RIGHT = {
    "initials": ["big quick tree", " Big\nQuick  Tree "],
    "lengths": ["kiwi king kept"],
    "keys": ['{"a": 1, "k": [2, {"z": null}]}', ' {\n"k": "", "a": {}}\n'],
}
WRONG = {
    "initials": [
        "big quick",
        "big quick tree tree",
        "quick big tree",
        "b q t",
        "big, quick, tree",
        "big quick tree.",
        "1. big 2. quick 3. tree",
        "bíg quick tree",
        "big-quick-tree",
        "",
    ],
    "lengths": [
        "kiwi king kiwi",
        "kiwi king Kiwi",
        "kiwi king",
        "kiwi king kept keep",
        "kiwi king kit",
        "kiwi king open",
        "kiwi king ke-t",
        "",
    ],
    "keys": [
        '{"a": 1}',
        '{"a": 1, "k": 2, "z": 3}',
        '{"a": 1, "a": 1, "k": 2}',
        '{"A": 1, "k": 2}',
        '[{"a": 1, "k": 2}]',
        '["object", ["a", "k"]]',
        '{"a": 1, "k": 2}.',
        '```json\n{"a": 1, "k": 2}\n```',
        "{'a': 1, 'k': 2}",
        "ak",
        '"ak"',
        "",
        "[" * 100_000,
        '{"a": ' + "9" * 10_000 + ', "k": 1}',
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_verify(form):
    task = get_task("constrained")
    assert [text for text in RIGHT[form] if not task.verify(text, FORMS[form])] == []
    assert [text[:100] for text in WRONG[form] if task.verify(text, FORMS[form])] == []


@pytest.mark.parametrize("level", [1, 8])
def test_the_prompt_says_what_the_form_is(level):
    counts = set()
    kinds = set()
    for row in get_task("constrained", level=level).rows("train", 300):
        prompt = row["prompt"][0]["content"]
        form = json.loads(row["form"])
        kinds.add(form["kind"])
        letters = form.get("letters") or form.get("keys") or form["letter"]
        assert prompt.split()[-len(letters) :] == [*letters]
        count = form.get("count") or len(letters)
        assert form["kind"] == "keys" or prompt.startswith(f"{count} ")
        assert form["kind"] != "lengths" or f" of {form['length']} letters" in prompt
        counts.add(count)
    assert kinds == {"initials", "lengths", "keys"}
    assert counts == set(range(2, level + 3))
