"""Two real processes on a CPU (gloo): the main process decides, every process resets at the same boundary."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


HERE = Path(__file__).parent


def two_processes(worker, *arguments):
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HERE / worker), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def train(model, out, kind, seen_by):
    two_processes("distributed_worker.py", model, out, kind, seen_by)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)], events, metrics


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_what_the_main_process_alone_sees_resets_all_at_the_same_boundary(tiny_model, tmp_path, kind):
    ranks, events, metrics = train(tiny_model, tmp_path, kind, seen_by=0)
    assert ranks[0] == ranks[1]  # bitwise: the same hashes at the same steps
    assert [(seen["step"], seen["moved"]) for seen in ranks[0]] == [(0, False), (2, True)]
    assert ranks[0][1]["reference"] == ranks[0][1]["policy"] != ranks[0][0]["policy"]
    (event,) = events
    assert (event["reason"], event["step_requested"], event["step_applied"]) == ("seen by 0", 2, 2)
    assert event["world_size"] == 2 and event["seconds_sync"] > 0 and event["seconds_copy"] > 0
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    # Each process scores its four completions in one call: counts are those of both.
    assert [row["policy_forward_calls"] for row in metrics] == [2] * 4
    assert [row["ref_forward_calls"] for row in metrics] == [2, 0] * 2
    for generated, again in (metrics[:2], metrics[2:]):
        assert generated["tokens_generated"] == 8 * generated["completion_length"] and again["tokens_generated"] == 0
        assert (
            generated["tokens_processed_ref"] == generated["tokens_processed_policy"] > generated["tokens_generated"]
        )
        for row in (generated, again):
            assert row["tokens_per_second"] * row["time_step"] == pytest.approx(generated["tokens_generated"])


def test_what_another_process_alone_sees_is_not_the_run_s_decision(tiny_model, tmp_path):
    ranks, events, _ = train(tiny_model, tmp_path, "lora", seen_by=1)
    assert ranks[0] == ranks[1] and events == []
    assert not any(seen["moved"] for seen in ranks[0])


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_copies_and_optimizer_resets_reach_every_shard_of_fsdp2(tiny_model, kind):
    assert two_processes("sharded_worker.py", tiny_model, kind).count("every shard was reached") == 2
