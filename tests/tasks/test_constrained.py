import json

import pytest

from tasks import get_task


def row(**form):
    return {"answer": "", "form": json.dumps(form)}


INITIALS = row(kind="initials", letters="bqt")
LENGTHS = row(kind="lengths", count=3, length=4, letter="k")
KEYS = row(kind="keys", keys="ak")


@pytest.mark.parametrize(
    "row, completion, correct",
    [
        (INITIALS, "big quick tree", True),
        (INITIALS, " Big\nQuick  Tree ", True),
        (INITIALS, "ba qa ta", True),
        (INITIALS, "big quick", False),
        (INITIALS, "big quick tree tree", False),
        (INITIALS, "quick big tree", False),
        (INITIALS, "b q t", False),
        (INITIALS, "big, quick, tree", False),
        (INITIALS, "big quick tree.", False),
        (INITIALS, "1. big 2. quick 3. tree", False),
        (INITIALS, "bíg quick tree", False),
        (INITIALS, "big-quick-tree", False),
        (INITIALS, "", False),
        (LENGTHS, "kiwi king kept", True),
        (LENGTHS, "kiwi king kiwi", False),
        (LENGTHS, "kiwi king Kiwi", False),
        (LENGTHS, "kiwi king", False),
        (LENGTHS, "kiwi king kept keep", False),
        (LENGTHS, "kiwi king kit", False),
        (LENGTHS, "kiwi king open", False),
        (LENGTHS, "kiwi king ke-t", False),
        (LENGTHS, "", False),
        (KEYS, '{"a": 1, "k": [2, {"z": null}]}', True),
        (KEYS, ' {\n"k": "", "a": {}}\n', True),
        (KEYS, '{"a": 1}', False),
        (KEYS, '{"a": 1, "k": 2, "z": 3}', False),
        (KEYS, '{"a": 1, "a": 1, "k": 2}', False),
        (KEYS, '{"A": 1, "k": 2}', False),
        (KEYS, '[{"a": 1, "k": 2}]', False),
        (KEYS, '["object", ["a", "k"]]', False),
        (KEYS, '{"a": 1, "k": 2} ', True),
        (KEYS, '{"a": 1, "k": 2}.', False),
        (KEYS, '```json\n{"a": 1, "k": 2}\n```', False),
        (KEYS, "{'a': 1, 'k': 2}", False),
        (KEYS, "ak", False),
        (KEYS, '"ak"', False),
        (KEYS, "", False),
        (KEYS, "[" * 100_000, False),
        (KEYS, '{"a": ' + "9" * 10_000 + ', "k": 1}', False),
    ],
)
def test_verify(row, completion, correct):
    task = get_task("constrained")
    assert task.verify(completion, row) is correct
    assert task.reward(completion, row) == float(correct)


@pytest.mark.parametrize("level", [1, 8])
def test_the_prompt_says_what_the_form_is(level):
    counts = set()
    kinds = set()
    for row in get_task("constrained", level=level).rows("train", 300):
        prompt, form = row["prompt"][0]["content"], json.loads(row["form"])
        kinds.add(form["kind"])
        if form["kind"] == "initials":
            number, words, of, two, letters, starting, with_, *initials = prompt.split()
            assert "".join(initials) == form["letters"] and int(number) == len(initials)
        elif form["kind"] == "lengths":
            assert (
                prompt == f"{form['count']} different words of {form['length']} letters starting with {form['letter']}"
            )
        else:
            assert prompt == f"JSON object with exactly the keys {' '.join(form['keys'])}"
            assert list(form["keys"]) == sorted(set(form["keys"]))
        counts.add(form.get("count") or len(form.get("letters") or form["keys"]))
    assert kinds == {"initials", "lengths", "keys"}
    assert counts == set(range(2, level + 3))
