"""
TRL's defaults, advantages and loss, compared with closed forms on fixed tensors.

`trl_names.py` finds a missing name, but not `max` in the place of `min`, another normalisation or a flipped default.
TRL's own methods are called on an instance without a model: 0.2 s for all cases.
"""

import math
from collections import defaultdict
from dataclasses import fields
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from trl_prorl.kl import Aggregation, importance_ratio, kl_penalty
from trl_prorl.rollout import weighted_sum
from trl_prorl.supported import IMPORTANCE_LEVELS, LOSS_TYPES


# By key of `GRPOConfig`: what a run trains if a recipe does not set the key.
DEFAULTS = {
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "sync_ref_model": False,
    "loss_type": "dapo",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    "mask_truncated_completions": False,
    "num_generations": 8,
    "num_iterations": 1,
    "steps_per_generation": None,
    "max_completion_length": 512,
    "shuffle_dataset": True,
    "disable_dropout": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "vllm_importance_sampling_correction": True,
}
KEYS = ("loss_type", "importance_sampling_level", "beta", "use_bias_correction_kl", "scale_rewards", "training")
SETTINGS = [(0.1, True, "group", True), (0.1, False, "batch", True), (0.0, True, "none", False)]
CASES = [(loss_type, level, *rest) for loss_type, level, rest in product(LOSS_TYPES, IMPORTANCE_LEVELS, SETTINGS)]

# Two groups: rows beyond the bounds of the ratio, below and above without a clip, truncated and without a reward, with
# a tool's tokens. This process is the second of two.
LENGTHS = (5, 4, 5, 3, 2, 5)
COMPLETION_IDS = [[length] * length for length in LENGTHS]
ENDS = [3, 4, 5]
TOOL_MASKS = [*([1] * length for length in LENGTHS[:5]), [1, 0, 0, 1, 1]]
MASK = pad_sequence([torch.tensor(mask) for mask in TOOL_MASKS], batch_first=True)
MASK[4] = 0
REWARDS = torch.tensor([[1, 1]] * 6 + [[2, 0], [0, 1], [1, 2], [0, 1], [math.nan, math.nan], [3, 2]])
REWARD_WEIGHTS = torch.tensor([1.0, 0.5])  # of two functions
NOISE = torch.sin(torch.arange(90.0, dtype=torch.float64)).view(3, 6, 5)
LOGPS = NOISE[0] - 1.5
OLD_LOGPS = LOGPS + 0.1 * NOISE[1] - torch.tensor([1.0, -0.5, -0.5, 1.0, 0.4, 0.1])[:, None]
REF_LOGPS = LOGPS + 0.4 * NOISE[2]


def find_incompatibility(grpo: type, config: type) -> str | None:
    """
    Return one line that names the first unexpected number of TRL's `GRPOTrainer` and `GRPOConfig`; `None` if all
    agree.
    """
    defaults = {field.name: field.default for field in fields(config)}
    for key, expected in DEFAULTS.items():
        if key not in defaults or defaults[key] != expected:
            return f"the default of {key} is not {expected!r}"
    for case in CASES:
        keys = dict(zip(KEYS, case, strict=True))
        try:
            trainer = _make_trainer(grpo, {**defaults, **keys})
            computed = _compute(trainer)
            for name, number in _expect(trainer.args).items():
                torch.testing.assert_close(
                    computed[name], number, rtol=0.0, atol=1e-5, check_dtype=False, msg=f"{name} differs"
                )
        except Exception as error:  # a missing attribute, another argument, a loss type that is unknown
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            return f"{reason} (with {', '.join(f'{key}={value}' for key, value in keys.items())})"
    return None


def _make_trainer(grpo: type, keys: dict[str, Any]) -> Any:
    args = SimpleNamespace(**keys)
    vars(args).update(
        steps_per_generation=2,
        num_iterations=2,
        gradient_accumulation_steps=3 if args.training else 4,  # with a multiple of 2 · 2 no old policy is scored
        mask_truncated_completions=True,
        max_completion_length=7,
        num_generations=3,
        num_generations_eval=3,
        epsilon_low=0.2,
        epsilon_high=1.2,  # the upper bound of the ratio is 2.2; with cispo 1.2
        pad_to_multiple_of=None,
    )
    trainer = object.__new__(grpo)
    vars(trainer).update(
        vars(args),  # it keeps most of its configuration under the same names
        args=args,
        model=SimpleNamespace(training=args.training, is_gradient_checkpointing=False, logps=OLD_LOGPS),
        ref_model=SimpleNamespace(logps=REF_LOGPS),
        accelerator=SimpleNamespace(
            num_processes=2,
            process_index=1,
            is_main_process=False,
            device="cpu",
            gather=lambda values: values,
            reduce=lambda values, reduction: values,
        ),
        current_gradient_accumulation_steps=args.gradient_accumulation_steps,
        aux_loss_enabled=False,
        reward_funcs=["accuracy", "format"],
        reward_func_names=[],
        reward_weights=REWARD_WEIGHTS,
        eos_token_ids=ENDS,
        tools=None,
        environments=None,
        environment_factories=None,
        _entropy_bonus_enabled=False,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _logs=defaultdict(list),
        _pending_extra_logs={},
        _pending_metrics={},
        _generate=lambda _: ([[3]] * 6, COMPLETION_IDS, TOOL_MASKS, ["text"] * 6, None, {}, None, []),
        _calculate_rewards=lambda *_: REWARDS,
        _get_per_token_logps_and_entropies=lambda model, *_, **__: (model.logps, torch.ones(6, 5), None),
    )
    return trainer


def _compute(trainer: Any) -> dict[str, Any]:
    batch = trainer._generate_and_score_completions([{"prompt": "text"}] * 6)
    logps = LOGPS.clone().requires_grad_()
    trainer.model.logps = logps
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    metrics = trainer._metrics["train" if trainer.training else "eval"]
    return {**metrics, **batch, "loss": loss.detach(), "gradient": logps.grad}


def _expect(args: SimpleNamespace) -> dict[str, Any]:
    # Advantages, over the groups of both processes. A completion without a reward has none.
    rewards = weighted_sum(REWARDS, REWARD_WEIGHTS).view(4, 3)
    centered = rewards - rewards.nanmean(1, keepdim=True)
    group = centered.square().nansum(1, keepdim=True) / ((~rewards.isnan()).sum(1, keepdim=True) - 1)
    batch = rewards[~rewards.isnan()].var()
    deviations = {"group": group.sqrt() + 1e-4, "batch": batch.sqrt() + 1e-4, "none": 1.0}
    advantages = (centered / deviations[args.scale_rewards]).nan_to_num(0.0).view(12, 1)[6:]

    # Loss per token `(6, 5)`, or per row `(6, 1)`
    logps = LOGPS.clone().requires_grad_()
    old_logps = OLD_LOGPS if args.training else LOGPS
    ratio = importance_ratio(logps, old_logps, MASK, args.importance_sampling_level)
    clipped = ratio.clamp(1 - args.epsilon_low, 1 + args.epsilon_high)
    if LOSS_TYPES[args.loss_type].clipped:  # PPO, arXiv 1707.06347
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
    elif args.loss_type == "cispo":  # arXiv 2506.13585
        loss = -ratio.clamp(max=args.epsilon_high).detach() * advantages * logps
    elif args.loss_type == "sapo":  # arXiv 2511.20347
        temperature = torch.where(advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg)
        loss = -4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantages
    elif args.loss_type == "vespo":  # arXiv 2602.10693
        power = torch.where(advantages >= 0, args.vespo_k_pos, args.vespo_k_neg)
        rate = torch.where(advantages >= 0, args.vespo_lambda_pos, args.vespo_lambda_neg)
        weight = ((LOGPS - old_logps) * MASK).sum(1, keepdim=True).exp()
        loss = -(weight**power) * torch.exp(rate * (1 - weight)) * advantages * logps
    kl = kl_penalty(logps, REF_LOGPS, "k3", ratio if args.use_bias_correction_kl else None)

    # Aggregation
    masks = {"completion_mask": MASK, "num_items_in_batch": MASK.sum()}
    weights = Aggregation(args, processes=2).weights(
        masks, args.gradient_accumulation_steps if args.training else None
    )
    total = (weights * (loss + args.beta * kl)).sum()
    total.backward()
    expected = {
        "advantages": advantages.flatten(),
        "num_items_in_batch": masks["num_items_in_batch"],
        "loss": total.detach(),
        "gradient": logps.grad,
    }
    if args.beta != 0.0:
        expected["kl"] = [kl[MASK == 1].mean().item()]
    return expected
