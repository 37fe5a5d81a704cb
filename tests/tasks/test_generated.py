"""What holds for every task, and for every generated one."""

import hashlib
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trl_prorl.tasks.code
from trl_prorl.tasks import get_task
from trl_prorl.tasks.generated import GeneratedTask


# Short enough for a byte-level model of a million parameters.
TINY = ["bracket_matching", "digit_checksum", "parity", "reverse_digits", "sorting", "sums"]
# SHA-256 of rows of every level.
PUBLISHED = {
    "bracket_matching": "e9fa139e",
    "digit_checksum": "70c46ca2",
    "parity": "4ce92ab5",
    "reverse_digits": "2f607399",
    "sorting": "f4dcea86",
    "sums": "3a6ac249",
    "code": "afe6e78f",
    "instructions": "30545b58",
    "stem": "867cedc0",
}
NAMES = list(PUBLISHED)
TASKS = [(name, {}) for name in NAMES if name != "code"] + [
    ("instructions", {"reward": "share"}),
    *(("sorting", {"reward": reward}) for reward in ("distance", "inclusion_ordering")),
]
# Gives some wrong answers the full reward, which their docs say.
GENEROUS = [("sorting", {"reward": "inclusion_ordering"})]

NASTY = [
    "",
    " ",
    "\x00",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "½ ² ٣",
    "\ud800",
    "9" * 100_000,
    "9 " * 10_000,
    "([{" * 10_000,
    "#### " + "9" * 100_000,
    "\\boxed{" * 10_000,
    "#" * 100_000,
    "#### 1" + ",123" * 10_000,
]
LISTS = st.lists(st.integers().map(str)).map(" ".join)
CHOICES = st.text("ABCD answer:\n()*\\boxed{} 3m/s")
PIECES = st.sampled_from([*"#### |####|\\boxed{|{|}|$|\\|-|\u2212|.|,|e|nan|inf|7|½|\n".split("|"), "9" * 10_000])
MARKED = st.lists(PIECES | st.text(max_size=3)).map("".join)
completions = st.one_of(st.text(), st.text("0123456789 -+.,e()[]{}\n"), st.sampled_from(NASTY), LISTS, MARKED)
completions |= CHOICES.map("Answer: {}".format)


@pytest.fixture(scope="module", autouse=True)
def weak_sandbox():
    # The questions of `code` are the same in either; its verdicts are tested with it.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        patch.setattr(trl_prorl.tasks.code, "Sandbox", lambda allow_weak: None)
        yield


def prompts(dataset):
    return [messages[0]["content"] for messages in dataset["prompt"]]


@pytest.mark.parametrize("name", NAMES)
def test_fewer_rows_are_the_first_of_more(name):
    task = get_task(name)
    rows = task.rows("test", 40, seed=3)
    assert name not in TINY or max(map(len, prompts(rows))) < 64
    assert task.rows("test", 10, seed=3)[:] == rows[:10]


@pytest.mark.parametrize("name, options", TASKS)
def test_gold_answers_verify(name, options):
    for level in (1, 3, 8):
        task = get_task(name, level=level, **options)
        for row in task.rows("train", 50):
            assert task.verify(task.gold(row), row) is True
            assert task.verify(f" {task.gold(row)}\n", row) is True
            assert task.reward(task.gold(row), row) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_disjoint_over_seeds_and_levels(name):
    # The shortest questions occur at every level, and in these numbers of rows nearly all of them turn up.
    seen = {split: set() for split in ("train", "validation", "test")}
    for level in (1, 2, 3):
        for seed in (0, 1, 7):
            for split, n in {"train": 300, "validation": 75, "test": 75}.items():
                task = get_task(name, level=level)
                n = n if name in TINY else n // 3
                seen[split].update(map(task.content, prompts(task.rows(split, n, seed))))
    assert len(set.union(*seen.values())) == sum(map(len, seen.values()))


@pytest.mark.parametrize("name", NAMES)
def test_seeds_give_different_rows(name):
    task = get_task(name, level=8)
    first, second = (prompts(task.rows("train", 300, seed)) for seed in (0, 1))
    # Only the few shortest questions may meet by chance; streams that are shifted copies would share nearly all.
    assert len(set(first) & set(second)) < 30


@pytest.mark.parametrize("name", NAMES)
def test_rows_stay_as_they_were_published(name):
    """
    Recorded results name their rows by task, level, split and seed: a change here makes them incomparable. The hash of
    texts differs from process to process, so that this holds in any of them.
    """
    rows = [row for level in range(1, 9) for row in get_task(name, level=level).rows("test", 30, seed=5)]
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8] == PUBLISHED[name]


@pytest.mark.parametrize("name, options", [*TASKS, ("gsm8k", {})])
def test_scoring_never_raises(name, options):
    task = get_task(name, **options)
    row = {"answer": "42"} if name == "gsm8k" else task.rows("train", 1)[0]

    @settings(deadline=None, max_examples=150, derandomize=True)
    @given(completions)
    def scores(completion):
        correct = task.verify(completion, row)
        reward = task.reward(completion, row)
        assert type(correct) is bool
        assert type(reward) is float
        assert 0.0 <= reward <= 1.0
        assert reward == 1.0 if correct else reward < 1.0 or (name, options) in GENEROUS

    scores()
    for completion in NASTY:
        assert task.verify(completion, row) is False
        assert 0.0 <= task.reward(completion, row) < 1.0


class Bits(GeneratedTask):
    """The 16 strings of 4 bits."""

    name = "bits"

    def sample(self, rng):
        bits = "".join(rng.choices("01", k=4))
        return bits, bits


def test_an_exhausted_space_is_an_error():
    bits = [f"{i:04b}" for i in range(16)]
    train = [b for b in bits if int(hashlib.sha256(f"bits\x1f{b}".encode()).hexdigest()[:16], 16) % 10 > 1]
    dataset = Bits().rows("train", len(train))
    assert sorted(prompts(dataset)) == train
    with pytest.raises(ValueError, match=rf"n=17: only {len(train)} different train questions"):
        Bits().rows("train", 17)
    with pytest.raises(ValueError, match="n=None"):
        Bits().rows("train", None)
