import hashlib

import pytest

from tasks.base import Task, build_dataset, check_request, content_bucket, content_split, stable_hash


def test_stable_hash_is_the_head_of_sha256():
    digest = hashlib.sha256(b"parity\x1f3\x1ftrain").hexdigest()
    assert stable_hash("parity", 3, "train") == int(digest[:16], 16)
    assert stable_hash("ab", "c") != stable_hash("a", "bc")


def test_splits_have_their_shares():
    splits = [content_split("some_task", f"question {i}") for i in range(20000)]
    # Four standard deviations of a share of 0.1 are 0.0085.
    assert splits.count("test") / len(splits) == pytest.approx(0.1, abs=0.0085)
    assert splits.count("validation") / len(splits) == pytest.approx(0.1, abs=0.0085)


def test_the_split_depends_on_the_task_and_the_question():
    buckets = {content_bucket("a", f"question {i}") for i in range(100)}
    assert buckets == set(range(10))
    assert any(content_bucket("a", f"question {i}") != content_bucket("b", f"question {i}") for i in range(100))


@pytest.mark.parametrize(
    "message, requests",
    [
        ("split=.*train, validation, test", [(split, 1, 0) for split in ("dev", "", "Train", None, 3, ["train"])]),
        ("n=", [("train", n, 0) for n in (0, -1, 1.0, "3", True)]),
        ("seed=", [("train", 1, seed) for seed in (None, 0.5, "0", False)]),
    ],
)
def test_wrong_requests(message, requests):
    for request in requests:
        with pytest.raises(ValueError, match=message):
            check_request(*request)


def test_dataset_columns():
    dataset = build_dataset("some_task", 2, ["a?", "b?"], ["1", "2"])
    prompt = [{"role": "user", "content": "b?"}]
    assert dataset[1] == {"prompt": prompt, "answer": "2", "task": "some_task", "level": 2}


def test_reward_defaults_to_the_verdict():
    class Echo(Task):
        def rows(self, split, n, seed=0):
            raise NotImplementedError

        def verify(self, completion, row):
            return completion == row["answer"]

    assert Echo().reward("a", {"answer": "a"}) == 1.0
    assert Echo().reward("b", {"answer": "a"}) == 0.0
    assert Echo().gold({"answer": "a"}) == "a"


def test_stable_hash_keeps_the_parts_apart():
    assert stable_hash("ab", "c") != stable_hash("a", "bc")
