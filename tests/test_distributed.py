"""Two real processes on a CPU (gloo): the main process decides, and every process resets at the same boundary."""

import json
from pathlib import Path

import pytest
import torch
from run_record import read_rows
from safetensors.torch import load_file


WORKER = str(Path(__file__).with_name("distributed_worker.py"))
SHARDED = str(Path(__file__).with_name("sharded_worker.py"))


@pytest.fixture
def start(forks, tmp_path):
    """A function that starts two processes and waits for their end."""
    log = tmp_path / "log"

    def run(script, **order):
        forks.start(run=script, ranks=2, log=str(log), **order)
        assert forks.status() == 0, log.read_text()[-4000:]

    return run


@pytest.fixture
def two_processes(start, tiny_model, tmp_path):
    """A function that trains or evaluates as distributed_worker.py does: the run folder, and what each rank found."""

    def run(*arguments):
        out = tmp_path / "run"
        start(WORKER, argv=[tiny_model, str(out), *map(str, arguments)])
        return out, [json.loads(Path(f"{out}-rank{rank}.json").read_text()) for rank in (0, 1)]

    return run


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_what_the_main_process_alone_sees_resets_all_at_the_same_boundary(two_processes, kind):
    out, ranks = two_processes(kind, 0)
    (event,) = read_rows(out, "events.jsonl")
    metrics = read_rows(out)
    assert ranks[0] == ranks[1]  # bitwise: the same hashes at the same steps
    assert [(seen["step"], seen["moved"]) for seen in ranks[0]] == [(0, False), (2, True)]
    assert ranks[0][1]["reference"] == ranks[0][1]["policy"] != ranks[0][0]["policy"]
    assert (event["reason"], event["step_requested"], event["step_applied"]) == ("seen by 0", 2, 2)
    assert event["world_size"] == 2
    assert event["seconds_sync"] > 0
    assert event["seconds_copy"] > 0
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    # Each process scores its four completions in one call: counts are those of both.
    assert [row["policy_forward_calls"] for row in metrics] == [2] * 4
    assert [row["ref_forward_calls"] for row in metrics] == [2, 0] * 2
    for generated, again in (metrics[:2], metrics[2:]):
        tokens = generated["tokens_generated"]
        assert tokens == 8 * generated["completion_length"]
        assert again["tokens_generated"] == 0
        assert generated["tokens_processed_ref"] == generated["tokens_processed_policy"] > tokens
        for row in (generated, again):
            assert row["tokens_per_second"] * row["time_step"] == pytest.approx(tokens)


def test_what_another_process_alone_sees_is_not_the_run_s_decision(two_processes):
    out, ranks = two_processes("lora", 1)
    assert ranks[0] == ranks[1]
    assert not any(seen["moved"] for seen in ranks[0])
    assert read_rows(out, "events.jsonl") == []


@pytest.mark.parametrize(
    "batch, expected",
    [
        # 1, 3 and 0 correct of four: the prompt that fills the last batch, all correct there, does not count again.
        (4, {1: (0.25 + 0.75 + 0) / 3, 2: (0.5 + 1 + 0) / 3, 4: 2 / 3}),
        # 2, 0 and 1: a prompt's completions lie in both processes.
        (2, {1: (0.5 + 0 + 0.25) / 3, 2: (1 - 1 / 6 + 0 + 0.5) / 3, 4: 2 / 3}),
    ],
)
def test_pass_at_k_of_an_evaluation_is_that_of_both_processes(two_processes, batch, expected):
    _, found = two_processes(batch)
    first, second = (rank["seen"] for rank in found)
    if batch == 4:
        assert second[1] == first[0]
        assert len({call[0] for call in first + second}) == 3  # filled from the beginning
    else:
        assert first == second
        assert len(first) == 3
    for rank in found:
        assert rank["measured"] == {f"eval_pass@{k}": pytest.approx(value) for k, value in expected.items()}
        assert rank["reward"] == 1.0  # of 0, 1 and 2


def test_a_process_whose_rows_have_no_gradient_takes_part(start, tiny_model, tmp_path):
    """Each has a group of two a step, of one token: its rewards are often equal. Then it computes one row."""
    keys = {"fast": True, "compact_generation": "off", "max_completion_length": 1, "num_iterations": 2}
    keys |= {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 6}
    keys |= {"ddp_find_unused_parameters": False, "optim": "sgd", "learning_rate": 0.1}
    found = {}
    for skips in (False, None):
        out = tmp_path / str(skips)
        given = {"model": tiny_model, "out": str(out), "lora": True, "prompts": 8}
        start("training", keys=keys | {"skip_zero_rows": skips}, **given)
        found[skips] = (read_rows(out), load_file(out / "adapter_model.safetensors"))
    (rows, weights), (less, trained) = found.values()
    assert 1 in {row["rows_skipped"] for row in less} <= {0, 1, 2}
    for mine, theirs in zip(less, rows, strict=True):
        assert mine["policy_forward_calls"] == 2
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4, abs=1e-6)
    assert max((weights[name] - trained[name]).abs().max() for name in weights) < 1e-6


@pytest.mark.slow
def test_fsdp_trains_saves_and_resumes_as_with_trl_s_trainer(start, tiny_model, tmp_path):
    """With all our keys off, and a reference that TRL moves."""
    results = {}
    for kind in ("TRL", "ours"):
        out = tmp_path / kind
        logs = []
        for resume in ("", str(out / "checkpoint-2")):
            start(SHARDED, argv=[kind, tiny_model, str(out), resume])
            logs.append(json.loads((out / "logs.txt").read_text()))
        results[kind] = (logs, load_file(out / "model.safetensors"))
    (trl_logs, trl_weights), (logs, weights) = results.values()
    assert logs == trl_logs
    assert weights.keys() == trl_weights.keys()
    assert all(torch.equal(weights[name], trl_weights[name]) for name in weights)
