"""The guessing game, by games played by hand."""

import pytest

from trl_prorl.tasks import get_task


ROW = {"prompt": [{"role": "user", "content": "guess 12345"}], "answer": "5", "level": 8}
WON = [
    "5",
    "4\nguess > 4\n5",
    "4\nguess > 4\n7\nguess < 7\n5",
    "0\nguess > 0\n9\nguess < 9\n1\nguess > 1\n5",
    "x\nguess\n it is 5, 6?",
    "\nguess\n5\n",
]
LOST = ["", "4", "4\nguess > 4", "4\nguess > 4\n6", "1\nguess > 1\n2\nguess > 2\n3\nguess > 3\n4", "five"]
NO_GAME = [
    "4\nguess < 4\n5",  # another reply than the game's
    "4\n\n5",
    "5\nguess > 5\n5",  # it was over
    "4\nguess > 4\n5\nguess > 5",
    "1\nguess > 1\n2\nguess > 2\n3\nguess > 3\n4\nguess > 4\n5",  # a fifth turn
    "0\n1\n2\n3\n4\n5",
]


def test_games_played_by_hand():
    task = get_task("guess", level=8)
    assert [text for text in WON if not task.verify(text, ROW)] == []
    assert [text for text in LOST + NO_GAME if task.verify(text, ROW)] == []


@pytest.mark.parametrize(
    "turns, reply",
    [
        (["4"], "guess > 4"),
        (["6"], "guess < 6"),
        (["no. 15"], "guess > 1"),
        (["-"], "guess"),
        (["5"], None),
        (["4"] * 4, None),
    ],
)
def test_the_reply_to_a_turn(turns, reply):
    assert get_task("guess").reply(turns, ROW) == reply


def test_bisection_wins_every_game_of_every_level_within_four_turns():
    longest = 0
    for level in range(1, 9):
        task = get_task("guess", level=level)
        for secret in range(level + 2):
            row = ROW | {"answer": str(secret)}
            assert task.verify(task.gold(row), row)
            assert task.answer_of(task.gold(row), row) == str(secret)
            longest = max(longest, len(task.gold(row).split("\n")[::2]))
    assert longest == 4


def test_nothing_in_a_prompt_tells_the_number():
    """Whatever a strategy without replies looks at, a digit of the prompt here, it wins a tenth of its games."""
    rows = get_task("guess", level=8).rows("train", 4000)
    assert {row["answer"] for row in rows} == set("0123456789")
    for place in range(-5, 0):
        hits = sum(row["prompt"][0]["content"][place] == row["answer"] for row in rows)
        assert 330 < hits < 470  # 400 ± 3.7 standard deviations


@pytest.mark.parametrize("text, reward", [(WON[2], 1.0), (LOST[3], 0.45), (LOST[4], 0.45), ("", 0.0), ("9", 0.3)])
def test_a_lost_game_is_graded_by_its_last_guess(text, reward):
    assert get_task("guess", reward="near").reward(text, ROW) == pytest.approx(reward)


def test_a_mixture_has_one_turn():
    with pytest.raises(ValueError, match="'guess' has several turns"):
        get_task("guess:0.5,sorting:0.5")
