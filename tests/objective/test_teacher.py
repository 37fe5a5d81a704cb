"""
A teacher as the reference: the KL to it by enumeration of every completion, in the trainer's own loss; one training
and its costs; what is refused.
"""

import itertools

import pytest
import torch
from datasets import Dataset
from tiny_run import constant
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trl_prorl import ProRLConfig, ProRLTrainer


SYMBOLS = 4
LENGTH = 3
COMPLETIONS = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=LENGTH)))  # (64, 3)
PROMPT = torch.tensor([1, 3])
BETA = 0.7


def symbols():
    vocabulary = models.WordLevel({name: number for number, name in enumerate("abcd")}, unk_token="a")
    tokenizer = Tokenizer(vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a", eos_token="b")


def small(seed, layers):
    """A float64 model of four symbols."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SYMBOLS,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).double()


def log_softmax(model):
    """Log-probabilities of every symbol before each token of every completion, (64, 3, 4), by the plain forward."""
    ids = torch.cat([PROMPT.expand(len(COMPLETIONS), -1), COMPLETIONS], dim=1)
    logits = type(model).forward(model, input_ids=ids, use_cache=False).logits
    return logits[:, len(PROMPT) - 1 : -1].log_softmax(-1)


def of_tokens(logps):
    return logps.gather(-1, COMPLETIONS[..., None])[..., 0]  # (64, 3)


def gradient(value, model):
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, [*model.parameters()])])


@pytest.fixture
def enumerated(tmp_path):
    """A function that makes a trainer of the symbols, and the batch of all completions, scored by its teacher."""

    def make(**keys):
        size = len(COMPLETIONS)
        args = ProRLConfig(
            output_dir=str(tmp_path / "run"),
            per_device_train_batch_size=size,
            num_generations=size,
            max_completion_length=LENGTH,
            loss_type="dr_grpo",
            beta=BETA,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **keys,
        )
        rows = Dataset.from_dict({"prompt": ["b d"] * 4})
        given = {"train_dataset": rows, "processing_class": symbols(), "reward_funcs": constant(0.0)}
        trainer = ProRLTrainer(small(0, 1), args=args, ref_model=small(1, 2), **given)
        trainer.current_gradient_accumulation_steps = 1  # as Trainer sets it in a training
        trainer.meter.begin_step()
        ones = torch.ones_like(COMPLETIONS)
        batch = {
            "prompt_ids": PROMPT.expand(size, -1),
            "prompt_mask": torch.ones(size, len(PROMPT), dtype=torch.long),
            "completion_ids": COMPLETIONS,
            "completion_mask": ones,
            "advantages": torch.zeros(size, dtype=torch.float64),
            "num_items_in_batch": ones.sum(),
        }
        batch["ref_per_token_logps"] = trainer._score(trainer.anchors["ref"], batch)
        return trainer, batch

    return make


def row(batch, number):
    return {name: value[number : number + 1] if value.dim() else value for name, value in batch.items()}


# The settings of the papers: k1 with the ratio (on-policy distillation), k2 alone (KDRL), k3 with the ratio.
@pytest.mark.parametrize("estimator, corrected", [("k1", True), ("k2", False), ("k3", True)])
def test_the_loss_has_the_reverse_kl_to_the_teacher_and_its_gradient(enumerated, estimator, corrected):
    """
    Every completion's loss, weighted by its probability, against Σ_s P(s) KL(π(·|s) ‖ teacher(·|s)) / 3, a sum over
    all states s and symbols; its gradient does not go through P.
    """
    trainer, batch = enumerated(kl_estimator=estimator, use_bias_correction_kl=corrected, reward_weights=[0.0])
    policy = trainer.model
    losses = torch.stack([trainer.compute_loss(policy, row(batch, number)) for number in range(len(COMPLETIONS))])
    logps = log_softmax(policy)
    with torch.no_grad():
        teacher = log_softmax(trainer.ref_model)
        weights = of_tokens(logps).sum(1).exp()  # (64,)
    assert weights.sum() == pytest.approx(1.0)
    kl = (logps.exp() * (logps - teacher)).sum(-1).sum(1)  # (64,)
    exact = BETA * (weights * kl).sum() / LENGTH
    estimated = (weights * losses).sum()
    if estimator != "k2":  # whose value is another
        assert estimated.item() == pytest.approx(exact.item(), rel=1e-6)
    expected = gradient(exact, policy)
    assert (gradient(estimated, policy) - expected).norm() < 1e-6 * expected.norm()


def test_in_the_reward_it_is_the_kl_of_whole_completions(enumerated):
    """
    `kl_in: reward`: the expected gradient of Σ_t log π · advantage against that of KL(π ‖ teacher) over completions,
    by an advantage without a baseline.
    """
    trainer, batch = enumerated(kl_in="reward", advantage_estimator="raw", reward_weights=[0.0])
    policy = trainer.model
    logps = of_tokens(log_softmax(policy)).sum(1)
    with torch.no_grad():
        teacher = of_tokens(log_softmax(trainer.ref_model)).sum(1)
    kl = (logps.exp() * (logps - teacher)).sum()
    batch["old_per_token_logps"] = of_tokens(log_softmax(policy)).detach()
    deducted = trainer.anchors.in_reward(batch)  # β Σ_t (log π − log teacher)
    assert (logps.exp().detach() * deducted).sum().item() == pytest.approx(BETA * kl.item(), rel=1e-6)
    batch["advantages"] = -deducted
    losses = torch.stack([trainer.compute_loss(policy, row(batch, number)) for number in range(len(COMPLETIONS))])
    expected = gradient(BETA * kl / LENGTH, policy)
    estimated = gradient((logps.exp().detach() * losses).sum(), policy)
    assert (estimated - expected).norm() < 1e-6 * expected.norm()
