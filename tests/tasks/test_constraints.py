import pytest

from tasks.constraints import CONSTRAINTS, describe, fulfils, words


def test_words():
    text = 'Über - "two" *words*: it\'s, <<a>> [Name]! ... 3,5 --'
    assert words(text) == ["über", "two", "words", "it's", "a", "name", "3,5"]


# What meets it and what misses it, each between bars.
CASES = [
    (
        "word_count",
        {"n": 3},
        "one two three ¦ - One, two! three. ¦ <<one>>\ntwo three",
        "one two ¦ one two three four",
    ),
    ("word_range", {"low": 2, "high": 3}, "a b ¦ a b c", "a ¦ a b c d"),
    ("keywords", {"keywords": ["blue", "sea"]}, "The SEA is blue. ¦ blue,sea sea blue", "blue seas ¦ blue ¦ blue-sea"),
    ("word_times", {"word": "sea", "n": 2}, "Sea, sea ¦ sea (sea) season", "sea ¦ sea sea sea"),
    ("no_word", {"word": "sea"}, "a season", "the Sea! ¦ sea"),
    ("no_commas", {}, "a; b", "a, b"),
    ("lower", {}, "all lower 1!", "One ¦ éÉ"),
    ("upper", {}, "ALL CAPS 1!", "Caps ¦ éÉ"),
    ("bullets", {"n": 2}, "- a\n- b ¦ Two:\n - a\n -  b\n", "- a ¦ - a\n- b\n- c ¦ -a\n-b ¦ a - b - c ¦ - a\n- "),
    ("paragraphs", {"n": 2}, "a\n***\nb ¦ a b\n\n *** \n\nc", "a b ¦ a *** b ¦ a\n***\nb\n***\nc ¦ a\n***\n ¦ ***\na"),
    (
        "title",
        {},
        "<<a title>>\ntext ¦  <<T>> \n",
        "<a> ¦ text <<a>> ¦ <<>>\ntext ¦ text\n<<a>> ¦ <<a>> text ¦ <<a<b>>",
    ),
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
