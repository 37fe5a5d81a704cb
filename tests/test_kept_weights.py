"""TRL casts the weights for continuous batching, for good; here they are the same bits afterwards."""

from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
@pytest.mark.parametrize("lora", [True, False])
def test_a_generation_by_continuous_batching(make_trainer, weights, monkeypatch, cls, lora):
    """What `generate_batch` returns is made up; what TRL does around it is TRL's."""
    trainer = make_trainer(cls, lora=lora)
    trainer.use_transformers_continuous_batching, trainer.continuous_batching_config = True, None
    trainer.args.bf16 = True  # as on a GPU
    model = trainer.accelerator.unwrap_model(trainer.model)
    seen = []

    def generate_batch(prompts, **settings):
        seen.extend({param.dtype for param in model.parameters()})
        return {place: SimpleNamespace(generated_tokens=[5, 6]) for place, _ in enumerate(prompts)}

    owner = model.get_base_model() if lora else model
    monkeypatch.setattr(owner, "generate_batch", generate_batch, raising=False)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * 1e-3)
    before, buffers = weights(trainer), [buffer.clone() for buffer in model.buffers()]
    completions, _ = trainer._generate_single_turn([[1, 2], [3]], None, {}, 1)
    assert completions == [[5, 6], [5, 6]] and seen == [torch.bfloat16]
    after = weights(trainer)
    if cls is GRPOTrainer:  # the situation
        assert all(param.dtype == torch.bfloat16 for param in after.values())
        return
    assert all(torch.equal(after[name], before[name]) and after[name].dtype == torch.float32 for name in before)
    assert all(
        torch.equal(new, old) and new.dtype == old.dtype for new, old in zip(model.buffers(), buffers, strict=True)
    )
