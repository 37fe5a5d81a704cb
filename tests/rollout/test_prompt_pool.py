"""The pool asks unseen prompts first, lets prompts without a signal rest, and sees what was forgotten."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from run_record import read_rows
from tiny_run import vowels

from trl_prorl.extras.prompt_pool import Memory, PromptPool, update_memory
from trl_prorl.rollout import RolloutResult


# A group of a pool of 10 prompts, of which 100 groups were drawn: memory before, share of correct ones, are all equal?
# and the memory after it, by hand.
GROUPS = {
    "the first is the mean": (None, 0.25, False, Memory(0.25, 0, 100)),
    "a later one counts half": (Memory(0.25, 0, 30), 0.75, False, Memory(0.5, 0, 100)),
    "all right: one pass": (None, 1.0, True, Memory(1.0, 1, 110)),
    "again: two passes": (Memory(1.0, 1, 90), 1.0, True, Memory(1.0, 2, 120)),
    "at most eight": (Memory(1.0, 7, 90), 1.0, True, Memory(1.0, 8, 180)),
    "all wrong": (Memory(0.5, 0, 90), 0.0, True, Memory(0.25, 1, 110)),
    "solved, though one is wrong": (Memory(1.0, 2, 90), 0.8, False, Memory(0.9, 3, 140)),
    "forgotten": (Memory(1.0, 3, 90), 0.5, False, Memory(0.75, 0, 100)),
    "no verifier, equal": (Memory(None, 1, 90), None, True, Memory(None, 2, 120)),
    "no verifier, a signal": (Memory(None, 1, 90), None, False, Memory(None, 0, 100)),
}


@pytest.mark.parametrize("earlier, passed, is_equal, expected", GROUPS.values(), ids=GROUPS)
def test_what_is_remembered_of_a_group(earlier, passed, is_equal, expected):
    assert update_memory(earlier, passed, is_equal, drawn=100, prompts=10, retire=0.9) == expected


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_prompts_are_taken_by_their_turns(draw, prompts):
    """In batches and further rounds, of memories that change and of prompts about which nothing was learned."""
    pool = make_pool(prompts)
    order = torch.randperm(prompts, generator=torch.Generator().manual_seed(3)).tolist()
    due = [-1] * prompts
    for step in range(1, 30):
        pool._asked = set()
        for _ in range(draw.randint(1, 2)):
            number = draw.randint(1, 2 * prompts)
            turns = [(prompt in pool._asked, due[prompt], place) for place, prompt in enumerate(order)]
            in_turn = [order[place] for _, _, place in sorted(turns)]
            taken = pool.take(number)
            assert taken == [in_turn[place % prompts] for place in range(number)]
            pool._asked.update(taken)
            for prompt in taken:
                if draw.random() < 0.8:
                    pool.due[prompt] = due[prompt] = step + draw.randint(0, 20)


def make_pool(prompts, process=0, processes=1, shuffle_dataset=True):
    """A pool of prompts, which are numbers; of the first ones, if a number is given."""
    args = SimpleNamespace(prompt_pool_retire=0.9, seed=3, shuffle_dataset=shuffle_dataset)
    accelerator = SimpleNamespace(num_processes=processes, process_index=process)
    numbers = range(prompts) if isinstance(prompts, int) else prompts
    rows = Dataset.from_dict({"prompt": [str(number) for number in numbers]})
    return PromptPool(args, accelerator, rows, group_size=2, weights=torch.ones(1))


def sampler(solve, has_verifier=True):
    """Return a sampling whose rewards a function of prompt and place decides, and the prompts of its calls."""
    asked = []

    def draw(rows, again=False):
        prompts = [int(row["prompt"]) for row in rows]
        asked.append(prompts[::2])
        correct = [solve(prompt, place % 2) for place, prompt in enumerate(prompts)]
        rewards = torch.tensor(correct, dtype=torch.float).view(-1, 1)
        verdicts = {"correct": correct} if has_verifier else {}
        return {}, RolloutResult(rewards, 2, torch.tensor(0), [None] * len(rows), [], **verdicts)

    return draw, asked


def test_prompts_with_a_signal_are_asked_more_often_and_no_prompt_is_given_up():
    """Of 12 prompts 0 to 3 are always right, 4 to 7 always wrong, the others give a signal."""
    draw, asked = sampler(lambda prompt, place: prompt < 4 or (prompt > 7 and place == 0))
    pool = make_pool(12)
    shares = []
    for _ in range(120):
        _, outcome = pool.sample(draw, [{}] * 6)
        shares.append(outcome.measured)
    assert sorted(sum(asked[:4], [])) == list(range(12))  # each once before any twice
    assert asked[0] != [0, 1, 2]
    counts = Counter(sum(asked, []))
    # Passes of 12 groups: 1 + 2 + 4 + 8 + 8 + 8 of 30 are rests, so each of the first eight is asked six times or so.
    assert all(4 <= counts[prompt] <= 8 for prompt in range(8))
    assert sum(counts[prompt] for prompt in range(8, 12)) > 300
    last = shares[-1]
    assert (last["prompts_unseen"], last["prompts_solved"]) == (0.0, pytest.approx(1 / 3))
    assert [round(each["prompts_unseen"] * 12) for each in shares[:4]] == [9, 6, 3, 0]
    assert last["prompts_resting"] == pytest.approx(2 / 3)
    assert shares[-1]["groups_with_signal"] == 1.0


def test_a_prompt_that_was_forgotten_is_asked_again_and_again():
    forgotten = []
    draw, asked = sampler(lambda prompt, place: bool(prompt) or not forgotten or place == 0)
    pool = make_pool(4)
    for _ in range(4):
        pool.sample(draw, [{}] * 2)
    forgotten.append(True)
    for _ in range(40):
        pool.sample(draw, [{}] * 2)
    assert Counter(sum(asked[-20:], []))[0] >= 15


def test_further_rounds_ask_other_prompts_and_a_group_without_rewards_teaches_nothing():
    draw, asked = sampler(lambda prompt, place: prompt > 3 and place == 0)
    pool = make_pool(8)
    for _ in range(4):
        pool.sample(draw, [{}] * 8)
    asked.clear()
    pool.sample(draw, [{}] * 8)
    pool.sample(draw, [{}] * 8, again=True)
    assert sorted(asked[0]) == [4, 5, 6, 7]
    assert sorted(asked[1]) == [0, 1, 2, 3]

    unscored, _ = sampler(lambda prompt, place: torch.nan, has_verifier=False)

    def learned():
        return {index: (memory.rate, memory.rests) for index, memory in pool.memories.items()}

    before = learned()
    pool.sample(unscored, [{}] * 8)
    assert learned() == before


def test_prompts_that_no_reward_scores_do_not_fill_the_batches():
    pool = make_pool(40)
    draw, asked = sampler(lambda prompt, place: place if prompt % 5 else torch.nan, has_verifier=False)
    for _ in range(40):
        pool.sample(draw, [{}] * 8)
    assert max(Counter(sum(asked[20:], [])).values()) <= 3  # 20 batches of 4 prompts are two rounds of 40


def test_a_resume_remembers_prompts_unless_the_training_set_changed():
    draw, _ = sampler(lambda prompt, place: prompt == 1 or place == 0)
    pool = make_pool(6)
    pool.sample(draw, [{}] * 12)
    state = json.loads(json.dumps(pool.state_dict()))
    same = make_pool(6)
    same.load_state_dict(state, {})
    assert (same.drawn, same.memories, same.solved) == (6, pool.memories, pool.solved)
    assert same.take(6) == pool.take(6)
    later = make_pool(6)
    later.load_state_dict(state, {"rows of the training set": ["a", "b"]})
    assert (later.drawn, later.memories) == (6, {})


def test_every_process_has_its_share_of_the_same_prompts_even_of_half_a_group():
    rows = []
    for process in range(2):
        pool = make_pool(8, process, processes=2)
        seen = []

        def draw(given, again=False, seen=seen):
            seen += [int(row["prompt"]) for row in given]
            rewards = torch.tensor([[0.0], [1.0]] * 3)
            return {}, RolloutResult(rewards, 2, torch.tensor(0), [None] * 6, [], correct=[False, True] * 3)

        pool.sample(draw, [{}] * 3)
        rows.append((seen, pool.state_dict()))
    (first, state), (second, other) = rows
    assert state == other
    assert first[0] == first[1] != first[2] == second[0] != second[1] == second[2]


def test_a_run_is_asked_by_the_pool_and_dynamic_sampling_takes_its_further_prompts_from_it(run):
    """Prompts with an exclamation mark are hopeless: two of three. There are 16, and 2 groups of 4 in a batch."""
    asked = []

    def solved(completions, prompts, **columns):
        texts = [prompt[-1]["content"] for prompt in prompts]
        asked.extend(texts[::4])
        return [0.0 if text.endswith("!") else reward for text, reward in zip(texts, vowels(completions), strict=True)]

    keys = {"reward": solved, "prompt_pool": True, "max_steps": 24, "num_iterations": 1}
    rows = read_rows(run(**keys))
    assert len(set(asked[:16])) == 16
    assert sum(row["groups_with_signal"] for row in rows[-8:]) > sum(row["groups_with_signal"] for row in rows[:8])
    assert "prompts_solved" not in rows[-1]  # there is no verifier
    asked.clear()
    row = read_rows(run(dynamic_sampling_rounds=8, **{**keys, "max_steps": 1}))[0]
    assert row["groups_generated_again"] > 0
    assert len(set(asked)) == len(asked)  # the loader's rows of further rounds could repeat them


def test_a_stream_has_no_pool(make_trainer):
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "say 5"}] * 8))
    with pytest.raises(ValueError, match=r"prompt_pool.*stream"):
        make_trainer(prompt_pool=True, trainer_kwargs={"train_dataset": stream})
