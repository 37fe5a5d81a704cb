"""The frozen head as attention: against log-softmax in double precision, and TRL's own head as the control."""

import pytest
import torch
from test_packing import batch_of, build, with_adapter
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import add_fused_lm_head

from trl_prorl.scoring.head import FrozenHead, add_frozen_head
from trl_prorl.scoring.packing import packed_logps


def errors(dtype, temperature, score):
    """Root mean squares by which log-probabilities, entropies and gradients err, over 40 states and 3,000 tokens."""
    torch.manual_seed(0)
    states, weight = (torch.randn(*shape, dtype=torch.float64) for shape in ((40, 48), (3000, 48)))
    states, weight = (part.to(dtype) for part in (states, weight / 4))
    labels, wanted = torch.randint(0, 3000, (40,)), torch.randn(40)
    exact = states.double().requires_grad_()
    all_logps = (exact @ weight.double().t() / temperature).log_softmax(-1)
    logps = all_logps.gather(1, labels[:, None])[:, 0]
    (of_states,) = torch.autograd.grad((logps * wanted.double()).sum(), exact)
    states.requires_grad_()
    found, entropies = score(states, weight, labels)
    (gradient,) = torch.autograd.grad((found * wanted).sum(), states)
    assert not entropies.requires_grad or score is not ours
    pairs = ((found, logps), (entropies, -(all_logps.exp() * all_logps).sum(-1)), (gradient, of_states))
    return [(mine.double() - true).square().mean().sqrt().item() for mine, true in pairs]


def ours(states, weight, labels, temperature=0.7):
    return FrozenHead.apply(states, weight, labels, 1 / temperature)


def trls(states, weight, labels, temperature=0.7):
    outputs = ("log_probs", "entropy")
    return ChunkedLogProbFunction.apply(states, weight, None, labels, temperature, 1024, None, 1.0, outputs)[:2]


def test_numbers_in_fp32():
    assert max(errors(torch.float32, 0.7, ours)) < 2e-6


def test_in_bf16_it_errs_no_more_than_trl():
    mine, theirs = errors(torch.bfloat16, 0.7, ours), errors(torch.bfloat16, 0.7, trls)
    assert all(a <= b for a, b in zip(mine, theirs, strict=True)), (mine, theirs)


@pytest.mark.parametrize("groups, calls", [([(5, [3, 1]), (2, [4])], 1), ([(5, [0])], 0)], ids=["some", "no label"])
@pytest.mark.parametrize("case", ["frozen", "trained", "bias", "scaled", "unpacked"])
def test_which_calls_it_scores_and_that_values_stay(monkeypatch, case, groups, calls):
    model = build()
    if case == "bias":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size))
    if case == "scaled":
        model.config.logit_scale = 0.5
    add_fused_lm_head(model, 0.7, outputs=("log_probs", "entropy"))
    model = with_adapter(model)
    model.get_output_embeddings().weight.requires_grad_(case == "trained")
    ids, mask, keep = batch_of(groups)
    before = packed_logps(model, ids, mask, keep, compute_entropy=True)
    add_frozen_head(model.get_base_model(), 0.7)
    made, apply = [], FrozenHead.apply
    monkeypatch.setattr(FrozenHead, "apply", lambda *given: made.append(1) or apply(*given))
    after = packed_logps(model, ids, mask, keep, compute_entropy=True)
    torch.testing.assert_close(after, before, atol=2e-6, rtol=0)
    if case == "unpacked":
        made.clear()
        scored = model(input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True)
        assert scored.log_probs.shape == (len(ids), ids.shape[1] - 1) and model(ids).logits.dim() == 3 and not made
    else:
        assert len(made) == (calls if case == "frozen" else 0)


@pytest.mark.parametrize(
    "keys, added", [({}, True), ({"entropy_coef": 0.1}, False), ({"cast_lm_head_to_fp32": True}, False)]
)
def test_an_entropy_bonus_needs_trls(make_trainer, monkeypatch, keys, added):
    calls = []
    monkeypatch.setattr("trl_prorl.assembly.add_frozen_head", lambda *given: calls.append(given))
    make_trainer(pack_groups="on", **keys)
    assert bool(calls) is added
    make_trainer()
    assert len(calls) == added
