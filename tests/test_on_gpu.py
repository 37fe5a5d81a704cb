"""What only a GPU shows, and what `eval/gpucheck` has no part for: nothing here runs without one."""

import json
from pathlib import Path

import pytest
import torch

from trl_prorl.guards.finite import all_finite
from trl_prorl.resets.optimizer_state import reset_optimizer
from trl_prorl.rollout.draw import draw


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GPU = {"use_cpu": False, "bf16": True}


def rows(trainer):
    return [json.loads(line) for line in Path(trainer.args.output_dir, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1, "reuse_old_logps": True}])
@pytest.mark.parametrize("lora", [True, False])
def test_a_run_in_bf16_with_everything_on(run, keys, lora):
    trainer = run(lora=lora, pack_groups="on", compact_generation="on", **GPU, **keys)
    written = rows(trainer)
    assert len(written) == 4 and all(row["peak_memory_gib"] > 0 for row in written)
    assert all(row["policy_forward_calls"] == 1 for row in written)


def test_probes_leave_the_random_numbers_of_the_gpu_alone(make_trainer):
    """Packing and compact generation are tried when the trainer is made: the states afterwards are the same."""
    states = []
    for keys in ({}, {"pack_groups": "on", "compact_generation": "on"}):
        torch.cuda.manual_seed(5)
        make_trainer(seed=5, **GPU, **keys)
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)


def test_tokens_are_drawn_as_often_as_they_are_probable():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.0, 0.5, 0.25, 0.25, 0.0], device="cuda").expand(40_000, 5)
    counts = torch.bincount(draw(probabilities), minlength=5).cpu() / 40_000
    assert counts[0] == counts[4] == 0 and (counts - probabilities[0].cpu()).abs().max() < 0.015


def test_fused_adam_keeps_its_storage_through_a_reset():
    param = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.AdamW([param], fused=True)
    param.grad = torch.ones_like(param)
    optimizer.step()
    before = {key: value.data_ptr() for key, value in optimizer.state[param].items()}
    reset_optimizer(optimizer, "hard")
    state = optimizer.state[param]
    assert {key: value.data_ptr() for key, value in state.items()} == before
    assert all(value.eq(0).all() for value in state.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_on_the_gpu(dtype):
    largest = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype, device="cuda")
    assert all_finite([largest, -largest])
    largest[7] = torch.nan
    assert not all_finite([largest])
