"""Elastic Reset: by hand, and in training."""

import pytest
import torch
from run_record import read_rows

from trl_prorl.resets.elastic import ElasticAverage


def test_average_and_reset_by_hand(tmp_path):
    policy = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    elastic = ElasticAverage({"w": policy}, decay=0.9)
    with torch.no_grad():
        policy.copy_(torch.tensor([2.0, 4.0]))
    elastic.update()
    assert elastic.average["w"].tolist() == pytest.approx([1.1, 2.2])
    elastic.save(tmp_path)
    elastic.reset()
    assert policy.tolist() == pytest.approx([1.1, 2.2])
    assert elastic.average["w"].tolist() == [1.0, 2.0]
    again = ElasticAverage({"w": torch.nn.Parameter(torch.zeros(2))}, decay=0.9)
    again.load(tmp_path)
    assert again.average["w"].tolist() == pytest.approx([1.1, 2.2]) and again.initial["w"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="elastic.safetensors"):  # a checkpoint without it is named
        again.load(tmp_path / "none")


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_in_training_the_policy_becomes_its_average(make_trainer, weights, lora):
    trainer = make_trainer(lora=lora, elastic_reset_every=2, elastic_ema=0.5, max_steps=3, num_iterations=2)
    average, snapshots, after = trainer.parts["elastic"].average, [weights(trainer)], []
    update, reset = average.update, average.reset
    average.update = lambda: snapshots.append(weights(trainer)) or update()
    average.reset = lambda: reset() or after.append(weights(trainer))
    trainer.train()
    start, first, second = snapshots[:3]
    (after,) = after
    for name in average.parameters:
        assert torch.allclose(after[name], 0.25 * start[name] + 0.25 * first[name] + 0.5 * second[name], atol=1e-6)
    (event,) = read_rows(trainer, "events.jsonl")
    assert (event["event"], event["step_requested"], event["step_applied"]) == ("elastic_reset", 2, 2)


def test_small_steps_are_not_lost_in_bf16():
    """300 steps of 0.01 of the way to 1.05: 1 + 0.05 (1 − 0.99³⁰⁰) = 1.0475; a bf16 average would stay at 1."""
    policy = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    elastic = ElasticAverage({"w": policy}, decay=0.99)
    policy.data.fill_(1.05)
    for _ in range(300):
        elastic.update()
    exact = 1 + (policy[0].item() - 1) * (1 - 0.99**300)
    assert elastic.average["w"].tolist() == pytest.approx([exact] * 3, rel=1e-5)
    elastic.reset()
    assert policy.dtype == torch.bfloat16 and policy[0].item() == pytest.approx(exact, rel=2**-8)
