"""Measures of language on texts made by hand, and perplexity against a plain loop."""

import math
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_prorl.eval.analysis.language import (
    compression_ratio,
    distinct,
    knows_words_of,
    perplexity,
    real_text,
    token_drift,
)


@pytest.mark.parametrize(
    ("sequences", "n", "share"),
    [
        ([[1, 2, 3], [1, 2]], 1, 3 / 5),
        ([[1, 2, 3], [1, 2]], 2, 2 / 3),  # 12 23 12
        ([[1], [2]], 2, None),  # no pair goes from one sample to the next
    ],
)
def test_distinct_n(sequences, n, share):
    assert distinct(sequences, n) == (None if share is None else pytest.approx(share))


def test_what_repeats_itself_compresses():
    texts = [f"{number:04d} {math.sin(number)}" for number in range(40)]
    assert compression_ratio(texts[:1] * 40) > 3 * compression_ratio(texts) > 3
    assert compression_ratio(["\ud800"]) > 0  # a lone surrogate is no UTF-8


@pytest.mark.parametrize(
    ("size", "english"),
    [(1000, True), (256, False)],  # the second: bytes alone
)
def test_whether_a_vocabulary_has_english_words(size, english):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([real_text(20_000)], trainer)
    assert knows_words_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer), real_text(10_000)) is english


class Uniform(torch.nn.Module):
    """In bf16: every token is as likely as any other of 7, but the token after a 3 is surely 4."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids):
        assert not torch.is_grad_enabled()
        logits = torch.zeros(*input_ids.shape, 7, dtype=torch.bfloat16)
        logits[input_ids == 3] = torch.where(torch.arange(7) == 4, 0.0, -torch.inf).bfloat16()
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize(
    ("ids", "nats"),
    [
        ([0, 1, 2, 5, 0, 1, 2, 5], [math.log(7)] * 6),  # two windows of four, three tokens each
        ([0, 3, 4, 5, 0, 1, 2, 5], [math.log(7), 0.0, math.log(7), *[math.log(7)] * 3]),
        ([0, 1, 2, 3, 4, 1, 2, 5, 6], [math.log(7)] * 6),  # the 4 begins a window; the 6 is left out
        ([3, 4], [0.0]),
    ],
)
def test_perplexity_by_hand(ids, nats):
    assert perplexity(Uniform(), ids, window=4) == pytest.approx(math.exp(sum(nats) / len(nats)))


def test_token_drift_by_hand():
    """
    π = (1/2, 1/4, 1/4), π₀ = (1/4, 1/4, 1/2): KL = ½ ln 2 − ¼ ln 2; both entropies are 1.5 ln 2. A token with a logit
    of −∞ on both sides adds nothing.
    """
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.5, 0.0]]))
    base = torch.log(torch.tensor([[0.25, 0.25, 0.5, 0.0], [0.25, 0.25, 0.5, 0.0]]))
    found = token_drift(logits, base)
    assert found.kl_to_base.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-7)
    assert found.token_agreement.tolist() == [0.0, 1.0]
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert found.base_entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    # At temperature ½ probabilities are squared and normalised: (2/3, 1/6, 1/6).
    cold = token_drift(logits[:1], base[:1], temperature=0.5)
    assert cold.entropy.item() == pytest.approx(-(2 / 3 * math.log(2 / 3) + 2 / 6 * math.log(1 / 6)))
    assert cold.kl_to_base.item() == pytest.approx(0.5 * math.log(4))
