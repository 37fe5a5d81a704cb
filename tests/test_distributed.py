"""Two real processes on a CPU (gloo): the main process decides, every process resets at the same boundary."""

import json
from pathlib import Path

import pytest
from run_record import read_rows


HERE = Path(__file__).parent


@pytest.fixture
def two_processes(forks, tmp_path):
    """A function that runs a script in two processes: what they wrote."""

    def run(worker, *arguments):
        log = tmp_path / "log"
        forks.start(run=str(HERE / worker), argv=list(map(str, arguments)), ranks=2, log=str(log))
        assert forks.status() == 0, log.read_text()[-4000:]
        return log.read_text()

    return run


@pytest.fixture
def train(two_processes, tiny_model, tmp_path):
    """A function that trains as distributed_worker.py does: what the ranks saw, the events and the metrics."""
    out = tmp_path / "run"

    def run(kind, seen_by):
        two_processes("distributed_worker.py", tiny_model, out, kind, seen_by)
        ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]
        return ranks, read_rows(out, "events.jsonl"), read_rows(out)

    return run


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_what_the_main_process_alone_sees_resets_all_at_the_same_boundary(train, kind):
    ranks, (event,), metrics = train(kind, seen_by=0)
    assert ranks[0] == ranks[1]  # bitwise: the same hashes at the same steps
    assert [(seen["step"], seen["moved"]) for seen in ranks[0]] == [(0, False), (2, True)]
    assert ranks[0][1]["reference"] == ranks[0][1]["policy"] != ranks[0][0]["policy"]
    assert (event["reason"], event["step_requested"], event["step_applied"]) == ("seen by 0", 2, 2)
    assert event["world_size"] == 2 and event["seconds_sync"] > 0 and event["seconds_copy"] > 0
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    # Each process scores its four completions in one call: counts are those of both.
    assert [row["policy_forward_calls"] for row in metrics] == [2] * 4
    assert [row["ref_forward_calls"] for row in metrics] == [2, 0] * 2
    for generated, again in (metrics[:2], metrics[2:]):
        tokens = generated["tokens_generated"]
        assert tokens == 8 * generated["completion_length"] and again["tokens_generated"] == 0
        assert generated["tokens_processed_ref"] == generated["tokens_processed_policy"] > tokens
        for row in (generated, again):
            assert row["tokens_per_second"] * row["time_step"] == pytest.approx(tokens)


def test_what_another_process_alone_sees_is_not_the_run_s_decision(train):
    ranks, events, _ = train("lora", seen_by=1)
    assert ranks[0] == ranks[1] and events == [] and not any(seen["moved"] for seen in ranks[0])


@pytest.mark.parametrize(
    "batch, expected",
    [
        # 1, 3 and 0 correct of four: the prompt that fills the last batch, all correct there, does not count again.
        (4, {1: (0.25 + 0.75 + 0) / 3, 2: (0.5 + 1 + 0) / 3, 4: 2 / 3}),
        # 2, 0 and 1: a prompt's completions lie in both processes.
        (2, {1: (0.5 + 0 + 0.25) / 3, 2: (1 - 1 / 6 + 0 + 0.5) / 3, 4: 2 / 3}),
    ],
)
def test_pass_at_k_of_an_evaluation_is_that_of_both_processes(two_processes, tiny_model, tmp_path, batch, expected):
    out = tmp_path / "run"
    two_processes("evaluation_worker.py", tiny_model, out, batch)
    found = [json.loads(Path(f"{out}-rank{rank}.json").read_text()) for rank in (0, 1)]
    first, second = (rank["seen"] for rank in found)
    if batch == 4:
        assert second[1] == first[0] and len({call[0] for call in first + second}) == 3  # filled from the beginning
    else:
        assert first == second and len(first) == 3
    for rank in found:
        assert rank["measured"] == {f"eval_pass@{k}": pytest.approx(value) for k, value in expected.items()}


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_copies_and_optimizer_resets_reach_every_shard_of_fsdp2(two_processes, tiny_model, kind):
    assert two_processes("sharded_worker.py", tiny_model, kind).count("every shard was reached") == 2
