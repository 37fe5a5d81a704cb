import json

import pytest

from trl_prorl.tasks import get_task, instructions
from trl_prorl.tasks.constraints import CONSTRAINTS, describe, fulfils, words
from trl_prorl.tasks.instructions import is_english, names, repeats


@pytest.mark.parametrize("level", [1, 2, 8])
def test_the_constraints_can_be_met_together(level):
    task = get_task("instructions", level=level)
    kinds = set()
    for row in task.rows("train", 300):
        constraints = json.loads(row["constraints"])
        kinds |= {constraint["kind"] for constraint in constraints}
        assert len({CONSTRAINTS[constraint["kind"]].slot for constraint in constraints}) == 1 + level // 2
        assert task.verify(task.gold(row), row), row
        _, *wishes = row["prompt"][0]["content"].split("\n")
        assert wishes == [f"- {describe(one.pop('kind'), one)}" for one in constraints]
    assert level < 8 or kinds == set(CONSTRAINTS)


ROW = {
    "constraints": json.dumps(
        [{"kind": "word_count", "n": 3}, {"kind": "no_commas"}, {"kind": "start", "word": "sea"}, {"kind": "lower"}]
    )
}


def test_share_is_of_the_constraints():
    shares = {"sea and land": 1.0, "sea, and land": 0.75, "Land and sea": 0.5, "A, b": 0.0, "": 0.0}
    task = get_task("instructions", reward="share")
    assert {text: task.reward(text, ROW) for text in shares} == shares
    assert [text for text in shares if get_task("instructions").reward(text, ROW)] == ["sea and land"]


def test_words():
    text = 'Über - "two" *words*: it\'s, <<a>> [Name]! ... 3,5 --'
    assert words(text) == ["über", "two", "words", "it's", "a", "name", "3,5"]


# What meets it and what misses it, each between bars.
CASES = [
    ("word_count", {"n": 3}, "one two three ¦ - One, two! three. ¦ <<a>>\ntwo three", "one two ¦ one two three four"),
    ("word_range", {"low": 2, "high": 3}, "a b ¦ a b c", "a ¦ a b c d"),
    ("keywords", {"keywords": ["blue", "sea"]}, "The SEA is blue. ¦ blue,sea sea blue", "blue seas ¦ blue ¦ blue-sea"),
    ("word_times", {"word": "sea", "n": 2}, "Sea, sea ¦ sea (sea) season", "sea ¦ sea sea sea"),
    ("no_word", {"word": "sea"}, "a season", "the Sea! ¦ sea"),
    ("no_commas", {}, "a; b", "a, b"),
    ("lower", {}, "all lower 1!", "One ¦ éÉ"),
    ("upper", {}, "ALL CAPS 1!", "Caps ¦ éÉ"),
    ("bullets", {"n": 2}, "- a\n- b ¦ Two:\n - a\n -  b\n", "- a ¦ - a\n- b\n- c ¦ -a\n-b ¦ a - b - c ¦ - a\n- "),
    ("paragraphs", {"n": 2}, "a\n***\nb ¦ a b\n\n *** \n\nc", "a b ¦ a *** b ¦ a\n***\nb\n***\nc ¦ a\n***\n ¦ ***\na"),
    ("title", {}, "<<a b>>\ntext ¦  <<T>> \n", "<a> ¦ text <<a>> ¦ <<>>\ntext ¦ text\n<<a>> ¦ <<a>> text ¦ <<a<b>>"),
    (
        "sentences",
        {"n": 2},
        'One. Two! ¦ Is it? It is 3.5 m. ¦ He said "go." She left. ¦ It rains. He said "go!" ¦ Wait... (It rains.)',
        "One. ¦ One. Two. Three. ¦ One. Two ¦ One. Two. three ¦ a . . . ¦ One. . ¦ One. Two. - ¦ a . . b",
    ),
    ("start", {"word": "sea"}, 'Sea and land ¦ "sea"', "The sea ¦ seas"),
    ("end", {"phrase": "by the sea"}, "A house by the sea. ¦ BY THE SEA!", "by the sea side ¦ the sea"),
    ("letter", {"letter": "e", "n": 3}, "eee ¦ E e x e e", "ee"),
    ("placeholders", {"n": 2}, "[a] and [b c] ¦ [a][b][c]", "[a] ¦ [] [a] ¦ [a b"),
]


def test_every_constraint_is_here():
    assert {case[0] for case in CASES} == set(CONSTRAINTS)


@pytest.mark.parametrize("kind, parameters, met, missed", CASES)
def test_constraint(kind, parameters, met, missed):
    for text in met.split(" ¦ "):
        assert fulfils(text, kind, parameters) is True, text
    for text in missed.split(" ¦ "):
        assert fulfils(text, kind, parameters) is False, text
    for value in parameters.values():
        for part in value if isinstance(value, list) else [value]:
            assert str(part) in describe(kind, parameters)


def test_a_text_without_words_meets_nothing():
    for text in ("", " \n", "...", "- * -"):
        for kind, parameters, _, _ in CASES:
            assert not fulfils(text, kind, parameters)


KNOWN = set("i it we the a is are was and at of old very quiet blue see walk walked then don't glass sea's".split())
ON_A_STREET = {"constraints": json.dumps([{"kind": "no_commas"}]), "topic": "a quiet street"}


@pytest.fixture
def small_dictionary(monkeypatch):
    monkeypatch.setattr(instructions, "english_words", lambda: KNOWN.__contains__)


NAMED = [
    ("The streets are old.", "a quiet street"),
    ("STREET!", "a quiet street"),
    ("The bee's wing", "bees"),
    ("At night we walk", "the city at night"),
    ("It is glass", "glass"),
]
NOT_NAMED = [("Streetwise and quiet.", "a quiet street"), ("", "bees"), ("The city is old", "the city at night")]
ENGLISH = [
    "I see the old blue glass and I walked qzx",  # 9 of 10
    "I don’t see the sea's glass",  # a typographic apostrophe; a possessive that is listed
    "we see the glass's blue",  # a possessive that is not
]
NOT_ENGLISH = ["I see the old blue glass and qzx walked xqz", "I see 12 sea", "走 街", "", "..."]


def test_the_last_word_of_a_topic_names_it():
    assert [case for case in NAMED if not names(*case)] == []
    assert [case for case in NOT_NAMED if names(*case)] == []


def test_nine_words_of_ten_are_in_the_dictionary():
    assert [text for text in ENGLISH if not is_english(text, KNOWN.__contains__)] == []
    assert [text for text in NOT_ENGLISH if is_english(text, KNOWN.__contains__)] == []


def test_three_words_twice():
    assert repeats("the old sea. The old, sea")
    assert repeats("a a a a")
    assert not repeats("a a a")
    assert not repeats("the old sea and the old street")
    assert not repeats("")
    assert not repeats("old sea")


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("We walked the old street and it is quiet.", True),
        ("We walked the old glass and it is quiet.", False),  # another topic
        ("Wa wolkod tha street ond ot is quiet.", False),  # no words
        ("The old street and the old street.", False),  # over and over
        ("We walked, and the street is old.", False),  # not the form
    ],
)
def test_each_condition_of_gold_fails_alone_and_the_reward_sees_the_form_only(small_dictionary, text, makes):
    task = get_task("instructions", level=1, sense=True)
    assert task.verify(text, ON_A_STREET) is makes
    assert task.reward(text, ON_A_STREET) == float("," not in text)
    assert get_task("instructions", level=1).verify(text, ON_A_STREET) is ("," not in text)
