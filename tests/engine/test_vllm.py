"""Rollouts of a real vLLM: `make test-vllm` runs these in an environment of its own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_record import read_rows, without_times


pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm")

# Nats a token, largest. Two engines add in another order; in bf16 they round after every layer.
FP32 = 1e-3
BF16 = 0.25


def train(expected=0, dtype="float32", **keys):
    """What the worker found, or nothing if it was to die."""
    env = os.environ | {"ENGINE_DTYPE": dtype, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, str(Path(__file__).parent / "worker.py"), json.dumps(keys)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == expected, (done.stdout + done.stderr)[-4000:]
    return None if expected else json.loads(done.stdout.splitlines()[-1])


def check(said, bound, steps, lora=True):
    """vLLM sampled from the policy at each of these steps, and from no other model."""
    assert [row["step"] for row in said["found"]] == steps
    assert max(row["policy"][0] for row in said["found"]) < bound, said["found"]
    if lora:  # the base is far from the policy once that has learnt
        assert all(row["base"][1] > 20 * row["policy"][1] for row in said["found"] if row["step"] > 1), said["found"]


RESETS = {"beta": 0.1, "ref_reset_every": 2}
ARMS = {
    "plain": {},
    "a reset": RESETS | {"optimizer_reset": "hard"},
    "Elastic Reset": {"elastic_reset_every": 2, "elastic_ema": 0.5},
    "top_p": {"top_p": 0.8},
    "top_k and min_p": {"top_k": 5, "min_p": 0.1},
    "requests": RESETS | {"vllm_enable_lora": True, "optimizer_reset": "hard"},
    "requests after Elastic Reset": {"vllm_enable_lora": True, "elastic_reset_every": 2, "elastic_ema": 0.5},
    "full fine-tuning": {"lora": False, "learning_rate": 1e-3},
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_rollout_comes_from_the_policy(tmp_path, arm):
    said = train(output_dir=str(tmp_path), max_steps=6, **ARMS[arm])
    goes_back = "Elastic Reset" in arm or arm == "full fine-tuning"
    check(said, FP32, [0, 1, 2, 3, 4, 5], lora=not goes_back)
    assert said["same_base"] == (arm != "full fine-tuning")


def test_50_hand_overs_leave_the_bits_of_a_bf16_base(tmp_path):
    said = train(output_dir=str(tmp_path), max_steps=50, dtype="bfloat16")
    check(said, BF16, list(range(50)), lora=False)
    assert said["same_base"]


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
def test_importance_sampling_acts(tmp_path, mode):
    """TIS and IcePop: a ratio that may not exceed 0.5 is 0.5, or its token counts for nothing."""
    keys = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 0.5, "max_steps": 2}
    said = train(output_dir=str(tmp_path), **keys)
    rows = [row for row in said["log"] if "grad_norm" in row]
    truncates = mode == "token_truncate"
    means = [row["sampling/importance_sampling_ratio/mean"] for row in rows]
    assert means == pytest.approx([0.5 * truncates] * 2)
    assert all((row["grad_norm"] > 0) == truncates for row in rows)


REQUESTS = {"vllm_enable_lora": True}
EVALUATIONS = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
RESUMED = {
    "A, merged": RESETS | {"optimizer_reset": "hard"} | EVALUATIONS,
    "A, requests": RESETS | {"optimizer_reset": "hard"} | REQUESTS,
    "B, merged": {"beta_old": 0.1, "num_iterations": 2},
    "B, requests": {"beta_old": 0.1, "num_iterations": 2} | REQUESTS,
}


@pytest.mark.parametrize("arm", RESUMED)
def test_a_run_that_is_killed_three_times_ends_like_an_undisturbed_one(tmp_path, arm):
    """Killed while it samples, in steps 3, 5 and 7: weights, reference, samples and log are equal to the bit."""
    keys = {"save_strategy": "steps", "save_steps": 1, "max_steps": 8} | RESUMED[arm]
    whole = train(output_dir=str(tmp_path / "whole"), **keys)
    keys["output_dir"] = str(tmp_path / "killed")
    train(expected=-9, dies_at=2, **keys)
    train(expected=-9, dies_at=4, resume=True, **keys)
    train(expected=-9, dies_at=6, resume=True, **keys)
    last = train(resume=True, **keys)
    assert last["adapters"] == whole["adapters"]
    samples = [[(row["step"], row["drawn"]) for row in said["found"]] for said in (whole, last)]
    assert samples[1] == samples[0][-len(samples[1]) :]
    assert without_times(read_rows(tmp_path / "killed")) == without_times(read_rows(tmp_path / "whole"))
    # All completions of a group differ, and so do those of successive batches.
    assert len({tuple(ids) for row in whole["found"] for ids in row["drawn"]}) > 16


def test_samples_depend_on_seeds_of_their_own(tmp_path):
    """And not on torch's generator, from which vLLM draws without seeds."""
    drawn = []
    for disturbed in (False, True):
        said = train(output_dir=str(tmp_path / str(disturbed)), max_steps=1, disturbed=disturbed)
        drawn.append(said["found"][0]["drawn"])
    assert drawn[0] == drawn[1]
    assert len(set(map(tuple, drawn[0]))) > 4


def test_a_batch_whose_prompts_a_cpu_engine_cuts_is_sampled(tmp_path):
    """256 prompts have more than the 4,096 tokens that TRL lets the engine compute at once."""
    sizes = {"per_device_train_batch_size": 64, "steps_per_generation": 4, "gradient_accumulation_steps": 1}
    said = train(output_dir=str(tmp_path), max_steps=1, max_completion_length=4, **sizes)
    check(said, FP32, [0])


def test_the_distance_of_the_sampler_is_recorded_over_the_same_support(tmp_path):
    """Of top_p's tokens vLLM gives log-probabilities among those that are left, which no forward has."""
    rows = {}
    for name, keys in (("all", {}), ("some", {"top_p": 0.8})):
        train(output_dir=str(tmp_path / name), max_steps=2, **keys)
        rows[name] = read_rows(tmp_path / name)[0]
    assert rows["all"]["mean_abs_dlogp_sampler"] < FP32
    assert "mean_abs_dlogp_sampler" not in rows["some"]
