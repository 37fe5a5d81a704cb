"""TRL's numbers are the expected ones, and those of a TRL that computes something else are not."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_config, grpo_trainer
from trl_numbers import DEFAULTS, find_incompatibility

from trl_prorl import ProRLConfig


def test_the_installed_trl_fits_and_the_random_state_stays():
    before = torch.get_rng_state()
    assert find_incompatibility(GRPOTrainer, GRPOConfig) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_our_configuration_has_these_defaults():
    config = ProRLConfig(output_dir="unused", report_to="none", bf16=False)
    derived = {"steps_per_generation", "epsilon_high"}  # TRL derives their values from others
    assert {key: getattr(config, key) for key in DEFAULTS if key not in derived} == {
        key: value for key, value in DEFAULTS.items() if key not in derived
    }


def changed_copy(module, folder, monkeypatch, *changes):
    """A copy of a module of TRL, with texts replaced."""
    text = Path(module.__file__).read_text()
    for old, new in changes:
        assert old in text, f"TRL has no {old!r} any more: write this change anew"
        text = text.replace(old, new)
    path = folder / "copied.py"
    path.write_text(text)
    name = "trl.trainer.copied"  # its imports are relative
    spec = importlib.util.spec_from_file_location(name, path)
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, copied)
    spec.loader.exec_module(copied)
    return copied


# A change of TRL's trainer, and what the line about it must name.
CHANGES = {
    "max for min": ("torch.min(per_token_loss1", "torch.max(per_token_loss1", "loss_type=grpo"),
    "epsilons change sides": (
        "torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)",
        "torch.clamp(coef_1, 1 - self.epsilon_high, 1 + self.epsilon_low)",
        "loss_type=grpo",
    ),
    "another sign of the KL": (
        "torch.exp(ref_per_token_logps - per_token_logps) - (ref",
        "torch.exp(per_token_logps - ref_per_token_logps) - (ref",
        "beta=0.1",
    ),
    "k3 without its correction": ("if self.args.use_bias_correction_kl:", "if False:", "use_bias_correction_kl=True"),
    "k3 with it always": ("if self.args.use_bias_correction_kl:", "if True:", "use_bias_correction_kl=False"),
    "the ratio of a sequence is a sum": (
        "(log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)",
        "(log_ratio * mask).sum(-1)",
        "importance_sampling_level=sequence",
    ),
    "grpo takes the mean of the batch's tokens": (
        "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()",
        "loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)",
        "loss_type=grpo",
    ),
    "bnpo counts padding": (
        "loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)",
        "loss = (per_token_loss * mask).sum() / mask.numel()",
        "loss_type=bnpo",
    ),
    "dr_grpo divides by the longest row": (
        "(per_token_loss.size(0) * self.max_completion_length)",
        "(per_token_loss.size(0) * per_token_loss.size(1))",
        "loss_type=dr_grpo",
    ),
    "dapo ignores the other processes": (
        'inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        'inputs["num_items_in_batch"].clamp(min=1.0)',
        "loss_type=dapo",
    ),
    "dapo takes the whole generation batch": (
        "* self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        "",
        "loss_type=dapo",
    ),
    "luspo takes the mean of a row": (
        "loss = (per_token_loss * mask).sum(-1).mean()",
        "loss = (per_token_loss * mask).mean(-1).mean()",
        "loss_type=luspo",
    ),
    "sapo's temperatures change places": (
        "torch.where(advantages > 0, self.args.sapo_temperature_pos, self.args.sapo_temperature_neg)",
        "torch.where(advantages < 0, self.args.sapo_temperature_pos, self.args.sapo_temperature_neg)",
        "loss_type=sapo",
    ),
    "cispo's ratio has a gradient": ("max=self.epsilon_high).detach()", "max=self.epsilon_high)", "loss_type=cispo"),
    "vespo's weight is that of a token": (
        "torch.sum(log_ratio_clamped * mask, dim=-1, keepdim=True)",
        "(log_ratio_clamped * mask)",
        "loss_type=vespo",
    ),
    "tokens of tools and of masked rows count": (
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]',
        "mask = torch.ones_like(completion_mask)",
        "loss_type=grpo",
    ),
    "tokens of tools count": (
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]',
        "mask = completion_mask",
        "training=True",
    ),
    "an evaluation is divided by the accumulation": (
        'normalizer = self.current_gradient_accumulation_steps if mode == "train" else 1.0',
        "normalizer = self.current_gradient_accumulation_steps",
        "training=False",
    ),
    "samples of an earlier policy are taken for its own": (
        'old_per_token_logps = inputs.get("old_per_token_logps")',
        "old_per_token_logps = None",
        "training=True",
    ),
    "a loss type is renamed": ('"luspo"', '"length_unbiased"', "loss_type=luspo"),
    "an attribute that no one knows": ("self.loss_type", "self.objective", "objective"),
    "a column is renamed": ('"advantages": adv', '"values": adv', "advantages"),
    "a metric is renamed": ('["kl"]', '["kl_divergence"]', "kl"),
    "the loss is never asked for": ("return self._compute_loss(model, inputs)", "return model.loss", "loss"),
    "no deviation in the advantages": ('if self.scale_rewards != "none":', "if False:", "scale_rewards=group"),
    "a deviation always": ('if self.scale_rewards != "none":', "if True:", "scale_rewards=none"),
    "the deviation of the batch": (
        'if self.scale_rewards in ["group", "none"]:',
        'if self.scale_rewards in ["none"]:',
        "scale_rewards=group",
    ),
    "another small number in the deviation": ("(std_rewards + 1e-4)", "(std_rewards + 1e-2)", "advantages"),
    "rewards are not weighted": (
        "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
        "rewards = rewards_per_func.nansum(dim=1)",
        "advantages",
    ),
    "a completion without a reward has the reward 0": ("rewards[unscorable_mask] = torch.nan", "pass", "advantages"),
    "advantages of the first process": (
        "advantages = advantages[process_slice]",
        "advantages = advantages[: len(prompts)]",
        "advantages",
    ),
    "truncated completions count": ("if self.mask_truncated_completions:", "if False:", "num_items_in_batch"),
    "tokens of truncated completions count": (
        "else completion_mask * tool_mask\n        num_items",
        "else tool_mask\n        num_items",
        "num_items_in_batch",
    ),
    "the earlier policy is not scored": (
        "if self.args.gradient_accumulation_steps % generate_every != 0 or (",
        "if (",
        "loss",
    ),
    "the reference is the policy": (
        "_get_per_token_logps_and_entropies(\n                        self.ref_model,",
        "_get_per_token_logps_and_entropies(\n                        self.model,",
        "loss",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_trl_that_computes_something_else_is_named(change, tmp_path, monkeypatch):
    old, new, named = CHANGES[change]
    copied = changed_copy(grpo_trainer, tmp_path, monkeypatch, (old, new))
    found = find_incompatibility(copied.GRPOTrainer, GRPOConfig)
    assert named in found
    assert "\n" not in found


def test_an_unchanged_copy_fits(tmp_path, monkeypatch):
    assert find_incompatibility(changed_copy(grpo_trainer, tmp_path, monkeypatch).GRPOTrainer, GRPOConfig) is None


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('default="dapo"', 'default="grpo"', "loss_type"),
        ("epsilon: float", "epsilon_of_loss: float", "epsilon"),
    ],
)
def test_another_default_is_named(old, new, key, tmp_path, monkeypatch):
    copied = changed_copy(grpo_config, tmp_path, monkeypatch, (old, new))
    assert key in find_incompatibility(GRPOTrainer, copied.GRPOConfig)
