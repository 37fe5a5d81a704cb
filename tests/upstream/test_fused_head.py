"""TRL's fused head, through which every log-probability and entropy of a run comes, against log-softmax."""

import pytest
import torch
from tiny_run import new_model, sharpen
from trl.trainer.utils import add_fused_lm_head

from trl_prorl.embedded.shipped import byte_tokenizer


LENGTHS = (40, 38, 20, 9)  # padded on the left
PROMPT = 5  # tokens without a label


@pytest.fixture
def batch():
    """Ids, attention mask and labels `(4, 40)`: prompts, padding, some tokens and the last row have no label."""
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, 250, (len(LENGTHS), max(LENGTHS)), generator=source)
    lengths = torch.tensor(LENGTHS)[:, None]
    place = torch.arange(max(LENGTHS)) - (max(LENGTHS) - lengths)  # of a token in its row
    mask = (place >= 0).long()
    has_label = (place >= PROMPT) & (place % 7 != 3)
    has_label[-1] = False
    return tokens, mask, tokens.masked_fill(~has_label, -100)


def large_model():
    return sharpen(new_model(byte_tokenizer()))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trls_fused_head_computes_log_softmax(batch, temperature):
    tokens, mask, labels = batch
    fused = large_model()
    add_fused_lm_head(fused, temperature=temperature, outputs=("log_probs", "entropy"))
    output = fused(input_ids=tokens, attention_mask=mask, labels=labels, fused_lm_head=True)

    plain = large_model()
    logits = plain(input_ids=tokens, attention_mask=mask).logits[:, :-1] / temperature  # (4, 39, vocabulary)
    log_softmax = torch.log_softmax(logits, dim=-1)
    next_labels = labels[:, 1:]
    has_label = next_labels != -100
    log_probs = log_softmax.gather(-1, next_labels.clamp(min=0)[..., None])[..., 0] * has_label
    entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1) * has_label
    assert 1.0 < entropy[has_label].mean() < 5.0  # nats

    # Each side sums V exponentials, in its own order: V roundings of 2 ** -24 each, relative, so absolute in the
    # logarithm. An entropy is a sum of V products with numbers as large as the largest logarithm.
    tolerance = 2 * logits.shape[-1] * 2.0**-24
    assert (output.log_probs - log_probs).abs().max() < tolerance
    assert (output.entropy - entropy).abs().max() < tolerance * log_softmax.abs().max()
    assert (output.log_probs[~has_label] == 0).all() and (output.entropy[~has_label] == 0).all()

    # The gradient of a logit is a probability, of the same relative error.
    weights = torch.linspace(-1.0, 1.0, log_probs.numel()).view_as(log_probs)
    (output.log_probs * weights).sum().backward()
    (log_probs * weights).sum().backward()
    norm = torch.stack([param.grad.norm() for param in plain.parameters()]).norm()
    for param, expected in zip(fused.parameters(), plain.parameters(), strict=True):
        assert (param.grad - expected.grad).norm() < tolerance * norm
