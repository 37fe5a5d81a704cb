import json

import pytest
from tables import pairs

from tasks import get_task


def row(**form):
    return {"answer": "", "form": json.dumps(form)}


FORMS = {"initials": row(kind="initials", letters="bqt"), "keys": row(kind="keys", keys="ak")}
FORMS["lengths"] = row(kind="lengths", count=3, length=4, letter="k")
RIGHT = pairs(
    r"""
    initials ≟ big quick tree ¦ ␣Big⏎Quick  Tree␣ ¦ ba qa ta ¦ lengths ≟ kiwi king kept
    keys ≟ {"a": 1, "k": [2, {"z": null}]} ¦ ␣{⏎"k": "", "a": {}}⏎ ¦ {"a": 1, "k": 2}␣
    """
)
WRONG = pairs(
    r"""
    initials ≟ big quick ¦ big quick tree tree ¦ quick big tree ¦ b q t ¦ big, quick, tree ¦ big quick tree.
    1. big 2. quick 3. tree ¦ bíg quick tree ¦ big-quick-tree ¦ ∅ ¦ lengths ≟ kiwi king kiwi ¦ kiwi king Kiwi
    kiwi king ¦ kiwi king kept keep ¦ kiwi king kit ¦ kiwi king open ¦ kiwi king ke-t ¦ ∅ ¦ keys ≟ {"a": 1}
    {"a": 1, "k": 2, "z": 3} ¦ {"a": 1, "a": 1, "k": 2} ¦ {"A": 1, "k": 2} ¦ [{"a": 1, "k": 2}]
    ["object", ["a", "k"]] ¦ {"a": 1, "k": 2}. ¦ ```json⏎{"a": 1, "k": 2}⏎``` ¦ {'a': 1, 'k': 2} ¦ ak ¦ "ak" ¦ ∅
    """
) + [("keys", "[" * 100_000), ("keys", '{"a": ' + "9" * 10_000 + ', "k": 1}')]


@pytest.mark.parametrize("correct, form, completion", [(of is RIGHT, *case) for of in (RIGHT, WRONG) for case in of])
def test_verify(correct, form, completion):
    task = get_task("constrained")
    assert task.verify(completion, FORMS[form]) is correct
    assert task.reward(completion, FORMS[form]) == float(correct)


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
