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
RIGHT = [
    ("initials", "big quick tree"),
    ("initials", " Big\nQuick  Tree "),
    ("initials", "ba qa ta"),
    ("lengths", "kiwi king kept"),
    ("keys", '{"a": 1, "k": [2, {"z": null}]}'),
    ("keys", ' {\n"k": "", "a": {}}\n'),
    ("keys", '{"a": 1, "k": 2} '),
]
WRONG = [
    ("initials", "big quick"),
    ("initials", "big quick tree tree"),
    ("initials", "quick big tree"),
    ("initials", "b q t"),
    ("initials", "big, quick, tree"),
    ("initials", "big quick tree."),
    ("initials", "1. big 2. quick 3. tree"),
    ("initials", "bíg quick tree"),
    ("initials", "big-quick-tree"),
    ("initials", ""),
    ("lengths", "kiwi king kiwi"),
    ("lengths", "kiwi king Kiwi"),
    ("lengths", "kiwi king"),
    ("lengths", "kiwi king kept keep"),
    ("lengths", "kiwi king kit"),
    ("lengths", "kiwi king open"),
    ("lengths", "kiwi king ke-t"),
    ("lengths", ""),
    ("keys", '{"a": 1}'),
    ("keys", '{"a": 1, "k": 2, "z": 3}'),
    ("keys", '{"a": 1, "a": 1, "k": 2}'),
    ("keys", '{"A": 1, "k": 2}'),
    ("keys", '[{"a": 1, "k": 2}]'),
    ("keys", '["object", ["a", "k"]]'),
    ("keys", '{"a": 1, "k": 2}.'),
    ("keys", '```json\n{"a": 1, "k": 2}\n```'),
    ("keys", "{'a': 1, 'k': 2}"),
    ("keys", "ak"),
    ("keys", '"ak"'),
    ("keys", ""),
    pytest.param("keys", "[" * 100_000, id="keys-100,000 brackets"),
    pytest.param("keys", '{"a": ' + "9" * 10_000 + ', "k": 1}', id="keys-a number of 10,000 digits"),
]


@pytest.mark.parametrize("form, completion", RIGHT)
def test_verify_accepts(form, completion):
    task = get_task("constrained")
    assert task.verify(completion, FORMS[form]) is True
    assert task.reward(completion, FORMS[form]) == 1.0


@pytest.mark.parametrize("form, completion", WRONG)
def test_verify_refuses(form, completion):
    task = get_task("constrained")
    assert task.verify(completion, FORMS[form]) is False
    assert task.reward(completion, FORMS[form]) == 0.0


@pytest.mark.parametrize("level", [1, 8])
def test_the_prompt_says_what_the_form_is(level):
    counts = set()
    kinds = set()
    for row in get_task("constrained", level=level).rows("train", 300):
        prompt = row["prompt"][0]["content"]
        form = json.loads(row["form"])
        kinds.add(form["kind"])
        if form["kind"] == "initials":
            number, words, of, two, letters, starting, with_, *initials = prompt.split()
            assert "".join(initials) == form["letters"]
            assert int(number) == len(initials)
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
