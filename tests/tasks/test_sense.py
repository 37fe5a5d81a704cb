"""Texts made by hand: each sign of sense is there, or it alone is missing."""

import json

import pytest

from tasks import get_task, instructions
from tasks.instructions import english_words, is_english, makes_sense, names, repeats


KNOWN = set("i it we the a is are was and at of old very quiet blue see walk walked then don't glass sea's".split())
ROW = {"constraints": json.dumps([{"kind": "no_commas"}]), "topic": "a quiet street"}


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
    assert repeats("the old sea. The old, sea") and repeats("a a a a") and not repeats("a a a")
    assert not repeats("the old sea and the old street") and not repeats("") and not repeats("old sea")


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
    assert task.verify(text, ROW) is makes
    assert task.reward(text, ROW) == float("," not in text)
    assert get_task("instructions", level=1).verify(text, ROW) is ("," not in text)


def test_the_topics_words_are_words():
    assert makes_sense("The harbour", "a harbour", KNOWN.__contains__) and "harbour" not in KNOWN


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
    assert "topic" not in row and row["prompt"][0]["content"] == FIRST


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
    assert all(map(known, instructions.WORDS)) and not any(map(known, ["muscfirb", "wolkod", "asdf"]))
    assert all(map(known, ["bicycles", "walked", "neighborhood", "colors", "don't"]))
