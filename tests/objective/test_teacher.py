"""
A teacher as the reference: the KL to it by enumeration of every completion, in the trainer's own loss; one training
and its costs; what is refused.
"""

import itertools
import json
import shutil

import pytest
import torch
from datasets import Dataset
from run_record import read_rows
from tiny_run import constant, disturb_adapter, load_with_new_adapter, logits, record_results, save_tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedTokenizerFast,
)
from trl.trainer import grpo_trainer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import byte_tokenizer


SYMBOLS = 4
LENGTH = 3
COMPLETIONS = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=LENGTH)))  # (64, 3)
PROMPT = torch.tensor([1, 3])
BETA = 0.7


def symbol_tokenizer():
    vocabulary = models.WordLevel({name: number for number, name in enumerate("abcd")}, unk_token="a")
    tokenizer = Tokenizer(vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a", eos_token="b")


def small(seed, layers, symbols=SYMBOLS):
    """A float64 model of four symbols."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=symbols,
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
        given = {"train_dataset": rows, "processing_class": symbol_tokenizer(), "reward_funcs": constant(0.0)}
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


def test_beside_the_starting_model_it_is_the_interpolation_of_both(enumerated):
    """Generalized on-policy distillation with λ = 0.7: λ KL(π ‖ teacher) + (1 − λ) KL(π ‖ starting model)."""
    trainer, batch = enumerated(kl_estimator="k1", beta_base=1 - BETA, reward_weights=[0.0])
    policy = trainer.model
    start = log_softmax(policy).detach()
    batch["base_per_token_logps"] = trainer._score(trainer.anchors["base"], batch)
    with torch.no_grad():
        for param in policy.parameters():
            param.mul_(1.1)
    losses = torch.stack([trainer.compute_loss(policy, row(batch, number)) for number in range(len(COMPLETIONS))])
    logps = log_softmax(policy)
    with torch.no_grad():
        mixture = BETA * log_softmax(trainer.ref_model) + (1 - BETA) * start
        weights = of_tokens(logps).sum(1).exp()
    exact = (weights * (logps.exp() * (logps - mixture)).sum(-1).sum(1)).sum() / LENGTH
    estimated = (weights * losses).sum()
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


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The path of another tiny model of the same bytes."""
    path = save_tiny_model(tmp_path_factory.mktemp("teacher"), byte_tokenizer())
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(0.5)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("adapted", [True, False])
def test_a_run_has_one_teacher_and_never_changes_it(
    run, teacher, trained_adapter, adapted, largest_difference, monkeypatch
):
    monkeypatch.setattr(grpo_trainer, "create_model_from_path", grpo_trainer.create_model_from_path)  # restored
    loaded = record_results(grpo_trainer, "create_model_from_path")
    keys = {"lora": False, "beta": 0.3, "ref_model": teacher, "reward": constant(1.0)}
    slow = run(model=trained_adapter() if adapted else None, **keys)
    assert len(loaded) == (0 if adapted else 1)  # the policy
    model = slow.accelerator.unwrap_model(slow.model)
    assert set(getattr(model, "peft_config", {})) == ({"default"} if adapted else set())
    original = AutoModelForCausalLM.from_pretrained(teacher).state_dict()
    assert all(torch.equal(value, original[name]) for name, value in slow.ref_model.state_dict().items())
    assert not any(param.requires_grad for param in slow.ref_model.parameters())
    assert not slow.ref_model.training
    rows = read_rows(slow.run_dir)
    assert [row["ref_forward_calls"] for row in rows] == [1, 0, 1, 0]
    assert rows[0]["kl_ref"] > 0.1
    fast = run(model=trained_adapter() if adapted else None, **keys, fast=True, compact_generation="off")
    assert packed(fast)
    assert largest_difference(slow, fast) < 1e-5


def packed(trainer):
    return json.loads((trainer.run_dir / "env.json").read_text())["ref_model"]["packed"]


def test_a_teacher_of_an_unlisted_family_scores_row_by_row(run, largest_difference):
    torch.manual_seed(4)
    size = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    other = PhiForCausalLM(PhiConfig(**size, num_attention_heads=2, pad_token_id=0, bos_token_id=None, eos_token_id=4))
    keys = {"beta": 0.3, "trainer_kwargs": {"ref_model": other}}
    slow = run(**keys)
    fast = run(**keys, fast=True, compact_generation="off")
    assert fast.acceleration.packs
    assert not packed(fast)
    assert largest_difference(slow, fast) < 1e-5


def test_a_script_s_loaded_model_is_the_same_teacher(run, teacher, largest_difference):
    named = run(beta=0.3, ref_model=teacher)
    loaded = run(beta=0.3, trainer_kwargs={"ref_model": AutoModelForCausalLM.from_pretrained(teacher)})
    assert largest_difference(named, loaded) == 0
    assert loaded.args.ref_model == teacher


def test_a_run_s_adapter_is_merged_into_its_model(make_trainer, teacher, tmp_path):
    adapted = disturb_adapter(load_with_new_adapter(teacher))
    adapted.save_pretrained(tmp_path / "run")
    byte_tokenizer().save_pretrained(tmp_path / "run")
    trainer = make_trainer(beta=0.3, ref_model=str(tmp_path / "run"))
    assert torch.allclose(logits(trainer.ref_model), logits(adapted), atol=1e-5)


def test_a_resume_with_another_teacher_is_refused(run, resume, teacher, tiny_model, tmp_path):
    first = run(beta=0.3, ref_model=teacher, save_strategy="steps", save_steps=2)
    moved = shutil.copytree(teacher, tmp_path / "moved")
    keys = {"output_dir": first.args.output_dir, "beta": 0.3}
    resume(first, 2, ref_model=str(moved), **keys)
    with pytest.raises(ValueError, match="weights of ref_model"):
        resume(first, 2, ref_model=tiny_model, **keys)


def edit(folder, file, change):
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def of_fewer_bytes(folder):
    edit(folder, "tokenizer.json", lambda content: content["model"]["vocab"].update(a=64, A=65))
    return "'A'"


def of_other_splits(folder):
    edit(folder, "tokenizer_config.json", lambda content: content.update(add_prefix_space=True))
    return "prompt"


def of_other_bits(folder):
    edit(
        folder, "config.json", lambda content: content.update(quantization_config={"quant_method": "gptq", "bits": 4})
    )
    return "gptq"


@pytest.mark.parametrize("spoil", [of_fewer_bytes, of_other_splits, of_other_bits, shutil.rmtree])
def test_a_teacher_of_another_vocabulary_is_refused_in_one_line(make_trainer, teacher, tmp_path, spoil):
    folder = shutil.copytree(teacher, tmp_path / "spoiled")
    name = spoil(folder) or "cannot be loaded"
    with pytest.raises(ValueError, match=name) as caught:
        make_trainer(beta=0.3, ref_model=str(folder))
    assert f"ref_model={str(folder)!r}" in str(caught.value) and "\n" not in str(caught.value)


def test_a_loaded_teacher_needs_an_embedding_for_each_token(make_trainer):
    with pytest.raises(ValueError, match="200 embeddings"):  # the policy has 261
        make_trainer(beta=0.3, trainer_kwargs={"ref_model": small(0, 1, symbols=200)})
