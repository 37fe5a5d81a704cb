import json

import pytest

from trl_prorl.tasks import get_task, instructions
from trl_prorl.tasks.constraints import CONSTRAINTS, describe, fulfils, words
from trl_prorl.tasks.instructions import english_words, is_english, makes_sense, names, repeats


@pytest.mark.parametrize("level", range(1, 9))
def test_the_constraints_can_be_met_together(level):
    task = get_task("instructions", level=level)
    kinds = set()
    for row in task.rows("train", 300):
        constraints = json.loads(row["constraints"])
        kinds |= {constraint["kind"] for constraint in constraints}
        assert len(constraints) == 1 + level // 2
        assert len({CONSTRAINTS[constraint["kind"]].slot for constraint in constraints}) == len(constraints)
        assert task.verify(task.gold(row), row), row
        about, *wishes = row["prompt"][0]["content"].split("\n")
        assert about.startswith("Write a short text about ")
        assert wishes == [f"- {describe(one.pop('kind'), one)}" for one in constraints]
    assert level < 8 or kinds == set(CONSTRAINTS)


def test_a_text_for_one_row_seldom_does_for_another():
    task = get_task("instructions", level=6)
    rows = list(task.rows("train", 60))
    passed = sum(task.verify(task.gold(other), row) for row, other in zip(rows, rows[1:] + rows[:1], strict=True))
    assert passed <= 3


ROW = {
    "constraints": json.dumps(
        [{"kind": "word_count", "n": 3}, {"kind": "no_commas"}, {"kind": "start", "word": "sea"}, {"kind": "lower"}]
    )
}


@pytest.mark.parametrize(
    "completion, share",
    [("sea and land", 1.0), ("sea, and land", 0.75), ("Land and sea", 0.5), ("A, b", 0.0), ("", 0.0)],
)
def test_rewards(completion, share):
    assert get_task("instructions", reward="share").reward(completion, ROW) == share
    assert get_task("instructions").reward(completion, ROW) == float(share == 1.0)
    assert get_task("instructions").verify(completion, ROW) is (share == 1.0)


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


def test_once():
    assert describe("word_times", {"word": "sea", "n": 1}) == 'Use the word "sea" exactly once.'
    assert describe("bullets", {"n": 11}).startswith("Write exactly 11 bullet")


@pytest.mark.parametrize("piece", ["!", ".", '."', ". ", "- ", "[", "<<", "a", "***\n", " ", "a. "])
def test_long_texts_end(piece):
    for kind, parameters, _, _ in CASES:
        assert type(fulfils(piece * 100_000 + "a", kind, parameters)) is bool


KNOWN = set("i it we the a is are was and at of old very quiet blue see walk walked then don't glass sea's".split())
ON_A_STREET = {"constraints": json.dumps([{"kind": "no_commas"}]), "topic": "a quiet street"}


@pytest.fixture
def small_dictionary(monkeypatch):
    monkeypatch.setattr(instructions, "english_words", lambda: KNOWN.__contains__)


@pytest.mark.parametrize(
    ("text", "topic", "named"),
    [
        ("The streets are old.", "a quiet street", True),
        ("STREET!", "a quiet street", True),
        ("Streetwise and quiet.", "a quiet street", False),
        ("The bee's wing", "bees", True),
        ("", "bees", False),
        ("At night we walk", "the city at night", True),
        ("The city is old", "the city at night", False),
        ("It is glass", "glass", True),
    ],
)
def test_the_last_word_of_a_topic_names_it(text, topic, named):
    assert names(text, topic) is named


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("I see the old blue glass and I walked then", True),  # 10 of 10
        ("I see the old blue glass and I walked qzx", True),  # 9 of 10
        ("I see the old blue glass and qzx walked xqz", False),  # 8 of 10
        ("I see 12 sea", False),
        ("I don’t see the sea's glass", True),  # a typographic apostrophe; a possessive that is listed
        ("we see the glass's blue", True),  # a possessive that is not
        ("走 街", False),
        ("", False),
        ("...", False),
    ],
)
def test_nine_words_of_ten_are_in_the_dictionary(text, english):
    assert is_english(text, KNOWN.__contains__) is english


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


def test_the_topics_words_are_words():
    assert makes_sense("The harbour", "a harbour", KNOWN.__contains__)
    assert "harbour" not in KNOWN


@pytest.mark.parametrize("level", [1, 4, 8])
def test_every_question_has_an_answer_that_makes_sense(monkeypatch, level):
    everything = set(instructions.WORDS).__contains__
    monkeypatch.setattr(instructions, "english_words", lambda: everything)
    task = get_task("instructions", level=level, sense=True)
    for row in task.rows("train", 300):
        assert task.verify(task.gold(row), row), row
        assert row["prompt"][0]["content"].startswith(f"Write a short text about {row['topic']}.\n")


FIRST = "Write a short text about coffee.\n- Use exactly 8 words."


def test_questions_without_sense_are_the_ones_they_were():
    row = get_task("instructions", level=1).rows("train", 1)[0]
    assert "topic" not in row
    assert row["prompt"][0]["content"] == FIRST


def test_without_a_dictionary_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(instructions, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="sense needs a list of English words: `pip install pyspellchecker`"):
        english_words.__wrapped__()


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_sense_is_true_or_false(value):
    with pytest.raises(ValueError, match="must be true or false"):
        get_task("instructions", sense=value)


def test_the_dictionary_knows_the_words_of_the_task():
    pytest.importorskip("spellchecker")
    known = english_words()
    assert all(map(known, instructions.WORDS))
    assert not any(map(known, ["muscfirb", "wolkod", "asdf"]))
    assert all(map(known, ["bicycles", "walked", "neighborhood", "colors", "don't"]))
