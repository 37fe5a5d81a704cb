"""
TRL's numbers: its defaults, loss, advantages and buffer, compared with closed forms on fixed tensors.

`upstream.py` finds a name that is gone. It cannot find `max` in the place of `min`, another normalisation or a flipped
default, with which a run trains something else. Here TRL's own methods are called on an instance without a model: all
cases together take about 0.2 s. The closed forms of ratio, KL and aggregation are those of `kl.py`, whose terms are
added to TRL's loss. The tests run all cases; a run does if its version of TRL is not the tested one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from itertools import product
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch

from .kl import Aggregation, completion_mask, importance_ratio, kl_penalty
from .rollout import weighted_sum
from .supported import IMPORTANCE_LEVELS, LOSS_TYPES


TOLERANCE = 1e-5
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

Values = Iterator[tuple[str, Any, Any]]  # a name, TRL's value, the expected value


def find_misfit(grpo: type, config: type) -> str | None:
    """
    Find the first number of TRL that is not the expected one.

    Args:
        grpo (`type`): TRL's `GRPOTrainer`.
        config (`type`): TRL's `GRPOConfig`.

    Returns `str` or `None`: One line that names the case; `None` if all numbers agree.
    """
    with torch.random.fork_rng(devices=[]):
        for name, compare in list_cases(grpo, config):
            try:
                for what, value, expected in compare():
                    difference = _describe_difference(value, expected)
                    if difference is not None:
                        return f"{name}: {what} {difference}"
            except Exception as error:  # a missing attribute, another argument, a loss type that is unknown
                reason = str(error).partition("\n")[0]
                return f"{name}: {type(error).__name__}: {reason}"
    return None


def list_cases(grpo: type, config: type) -> Iterator[tuple[str, Callable[[], Values]]]:
    """Yield the name of each case, and a function that yields its values."""
    yield "GRPOConfig", partial(_compare_defaults, config)
    kls = ((0.0, True), (0.1, False), (0.1, True))
    for loss_type, level, (beta, corrected), training in product(LOSS_TYPES, IMPORTANCE_LEVELS, kls, (True, False)):
        keys = {
            "loss_type": loss_type,
            "importance_sampling_level": level,
            "beta": beta,
            "use_bias_correction_kl": corrected,
        }
        yield _name("loss", keys, training), partial(_compare_loss, grpo, config, keys, training)
    for scale, aggregation in (
        ("group", "sum_then_normalize"),
        ("batch", "sum_then_normalize"),
        ("none", "sum_then_normalize"),
        ("group", "normalize_then_sum"),
    ):
        for masks_truncated in (False, True):
            keys = {
                "scale_rewards": scale,
                "multi_objective_aggregation": aggregation,
                "mask_truncated_completions": masks_truncated,
                "beta": 0.1 if masks_truncated else 0.0,
                "gradient_accumulation_steps": 3 if masks_truncated else 4,
            }
            yield _name("rollout", keys, True), partial(_compare_rollout, grpo, config, keys, masks_truncated)
    yield "buffer of a generation batch", partial(_compare_buffer, grpo, config)


def _name(of: str, keys: dict[str, Any], training: bool) -> str:
    listed = ", ".join(f"{key}={value}" for key, value in keys.items())
    return f"{of} in {'training' if training else 'evaluation'} with {listed}"


def _describe_difference(value: Any, expected: Any) -> str | None:
    if not isinstance(expected, torch.Tensor):
        return None if value == expected else f"is {value!r}, not {expected!r}"
    value = torch.as_tensor(value)
    if value.shape != expected.shape:
        return f"has the shape {tuple(value.shape)}, not {tuple(expected.shape)}"
    gap = (value.double() - expected.double()).abs().max().item()
    return None if gap <= TOLERANCE else f"differs by {gap:.2g}"  # NaN is no match


def _make_trainer(grpo: type, config: type, keys: dict[str, Any], training: bool) -> Any:
    """Return an instance of TRL's trainer that has its configuration and no model."""
    args = SimpleNamespace(**{field.name: field.default for field in fields(config)})
    vars(args).update(report_to=[], steps_per_generation=2, num_iterations=2, max_completion_length=7, **keys)
    trainer = object.__new__(grpo)
    vars(trainer).update(vars(args))  # it keeps most of its configuration under the same names
    trainer.args = args
    trainer.model = SimpleNamespace(training=training, is_gradient_checkpointing=False, score=-1.0)
    trainer.state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
    trainer.accelerator = SimpleNamespace(
        num_processes=2,
        process_index=1,
        is_main_process=False,
        sync_gradients=True,
        device=torch.device("cpu"),
        gather=lambda values: values,
        gather_for_metrics=lambda values: values,
        reduce=lambda values, reduction: values,
        unwrap_model=lambda model: model,
    )
    trainer.current_gradient_accumulation_steps = 3
    trainer.aux_loss_enabled = False
    trainer._entropy_bonus_enabled = False
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._step = 0
    trainer._buffered_inputs = None
    return trainer


def _compare_defaults(config: type) -> Values:
    defaults = {field.name: field.default for field in fields(config)}
    for key, expected in DEFAULTS.items():
        yield f"the default of {key}", defaults[key], expected


# --------------------------------------------------------------------------------------------------------------- loss


def _wave(frequency: float) -> torch.Tensor:
    """Return fixed numbers between −1 and 1, shape `(6, 5)`."""
    return torch.sin(frequency * torch.arange(1.0, 31.0, dtype=torch.float64)).view(6, 5)


# Rows of a micro-batch: beyond the upper bound, below the lower, below and above where no clip acts, truncated and
# masked, within the bounds.
ADVANTAGES = torch.tensor([1.0, -1.0, 1.5, -1.5, 0.7, 0.4], dtype=torch.float64)
LOG_RATIOS = torch.tensor([0.5, -0.5, -0.5, 0.5, 0.4, 0.1], dtype=torch.float64)[:, None] + 0.15 * _wave(2.0)
LENGTHS = torch.tensor([5, 4, 5, 3, 0, 5])
EPSILON_LOW = 0.2
EPSILON_HIGH = 0.3
CISPO_BOUND = 1.2  # of the ratio itself
SHAPES = {
    "sapo_temperature_pos": 1.5,
    "sapo_temperature_neg": 2.0,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.5,
}


def _make_micro_batch(logps: torch.Tensor, has_old: bool) -> dict[str, torch.Tensor]:
    rows, length = logps.shape
    positions = torch.arange(length)
    prompt = torch.ones(rows, 2, dtype=torch.long)
    batch = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.ones(rows, length, dtype=torch.long),
        "completion_mask": (positions < LENGTHS[:, None]).long(),
        "advantages": ADVANTAGES,
        "num_items_in_batch": torch.tensor(37),
        "ref_per_token_logps": logps + 0.4 * _wave(3.0),
    }
    if has_old:
        batch["old_per_token_logps"] = logps - LOG_RATIOS
        batch["tool_mask"] = torch.ones(rows, length, dtype=torch.long)
        batch["tool_mask"][5, 1:3] = 0  # a tool wrote these tokens
    return batch


def _compare_loss(grpo: type, config: type, keys: dict[str, Any], training: bool) -> Values:
    """Compare the loss of a micro-batch; in training it has samples of an earlier policy, and tokens of a tool."""
    trainer = _make_trainer(grpo, config, {**SHAPES, **keys}, training)
    trainer.epsilon_low = EPSILON_LOW
    trainer.epsilon_high = CISPO_BOUND if trainer.loss_type == "cispo" else EPSILON_HIGH
    scored = (-1.0 + 0.5 * _wave(1.0)).requires_grad_()
    entropies = 1.0 + 0.5 * _wave(4.0)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (scored, entropies, None)
    batch = _make_micro_batch(scored.detach(), has_old=training)
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()

    logps = scored.detach().clone().requires_grad_()
    per_token, kl, ratio = _loss_of_tokens(trainer, batch, logps)
    accumulation = trainer.current_gradient_accumulation_steps if training else None
    expected = (
        Aggregation(trainer.args, trainer.accelerator.num_processes).weights(batch, accumulation) * per_token
    ).sum()
    expected.backward()
    yield "the loss", loss.detach(), expected.detach()
    yield "the gradient", scored.grad, logps.grad

    mask = completion_mask(batch)
    metrics = {"entropy": entropies}
    if trainer.beta:
        metrics["kl"] = kl.detach()
    if LOSS_TYPES[trainer.loss_type].clipped:
        advantages = ADVANTAGES[:, None]
        is_clipped = (ratio < 1 - EPSILON_LOW) & (advantages < 0) | (ratio > 1 + EPSILON_HIGH) & (advantages > 0)
        metrics["clip_ratio/region_mean"] = is_clipped.double()
    logged = trainer._metrics["train" if training else "eval"]
    for name, values in metrics.items():
        counted = mask if values.shape == mask.shape else torch.ones_like(values)
        yield f"the metric {name}", logged[name], (values * counted).sum()[None] / counted.sum()


def _loss_of_tokens(trainer, batch, logps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the closed form of the loss per token `(B, T)` or `(B, 1)`, its KL `(B, T)`, and the ratio."""
    args = trainer.args
    mask = completion_mask(batch)
    old = batch.get("old_per_token_logps", logps.detach())
    ratio = importance_ratio(logps, old, mask, args.importance_sampling_level)
    advantages = ADVANTAGES[:, None]
    is_positive = advantages > 0
    if LOSS_TYPES[args.loss_type].clipped:  # PPO, arXiv 1707.06347
        clipped = ratio.clamp(1 - EPSILON_LOW, 1 + EPSILON_HIGH)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
    elif args.loss_type == "cispo":  # arXiv 2506.13585
        loss = -ratio.clamp(max=CISPO_BOUND).detach() * advantages * logps
    elif args.loss_type == "sapo":  # arXiv 2511.20347
        temperature = torch.where(is_positive, args.sapo_temperature_pos, args.sapo_temperature_neg)
        loss = -4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantages
    elif args.loss_type == "vespo":  # arXiv 2602.10693
        power = torch.where(is_positive, args.vespo_k_pos, args.vespo_k_neg)
        rate = torch.where(is_positive, args.vespo_lambda_pos, args.vespo_lambda_neg)
        weight = ((logps - old).detach() * mask).sum(1, keepdim=True).exp()
        loss = -(weight**power) * torch.exp(rate * (1 - weight)) * advantages * logps
    corrects = ratio if args.use_bias_correction_kl else None
    kl = kl_penalty(logps, batch["ref_per_token_logps"], "k3", corrects)
    return loss + args.beta * kl, kl, ratio


# ------------------------------------------------------------------------------------------------------------ rollout

PAD = 0
END = 9
COMPLETIONS = [[5, END], [6, 6, 6], [END], [7, 7, END], [8, 8, 8], [5, 6, END]]  # two are truncated
TOOL_MASKS = [[1, 1], [1, 0, 1], [1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
GROUP = 3
MISSING = float("nan")
# Rewards of two functions for the completions of two processes. The second has these completions: a group of equal
# rewards, and one with a completion that no function scored.
REWARDS = torch.tensor(
    [
        *([1, 0], [0, 1], [2, MISSING]),
        *([5, MISSING], [1, 0], [2, 2]),
        *([1, 1], [1, 1], [1, 1]),
        *([0, 4], [MISSING, MISSING], [3, 2]),
    ]
)
WEIGHTS = torch.tensor([1.0, 0.5])


def _compare_rollout(grpo: type, config: type, keys: dict[str, Any], has_tools: bool) -> Values:
    """Compare masks, advantages and metrics of a generation batch, and the columns that are scored for it."""
    trainer = _make_trainer(
        grpo, config, {**keys, "num_generations": GROUP, "pad_to_multiple_of": None}, training=True
    )
    prompts = [[3], [3], [3], [4, 4], [4, 4], [4, 4]]
    trainer.processing_class = SimpleNamespace(batch_decode=lambda ids, **_: ["text"] * len(ids))
    trainer._tokenizer = SimpleNamespace(pad_token_id=PAD)
    trainer.eos_token_ids = [END]
    trainer.tools = []
    trainer.environments = trainer.environment_factories = trainer.rollout_func = None
    trainer._is_vlm = False
    trainer.ref_model = SimpleNamespace(score=-2.0)
    trainer.reward_funcs = trainer.reward_func_names = ["accuracy", "format"]
    trainer.reward_weights = WEIGHTS
    trainer._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
    trainer._pending_extra_logs = {}
    trainer._pending_metrics = {}
    trainer._calculate_rewards = lambda *_: REWARDS
    trainer._tokenize_prompts = lambda _: (prompts, None, {})
    trainer._generate_single_turn = lambda *_: (COMPLETIONS, None)
    if has_tools:
        sampled = {"prompt_ids": prompts, "completion_ids": COMPLETIONS, "logprobs": None, "env_mask": TOOL_MASKS}
        trainer.rollout_func = lambda *_: dict(sampled)

    def score(model, input_ids, attention_mask, logits_to_keep, **_):
        return torch.full((len(input_ids), logits_to_keep), model.score), None, None

    trainer._get_per_token_logps_and_entropies = score
    batch = trainer._generate_and_score_completions([{"prompt": "text"} for _ in COMPLETIONS])

    kept = [[1] * len(ids) for ids in COMPLETIONS]
    if trainer.mask_truncated_completions:
        kept = [mask if ids[-1] == END else [0] * len(ids) for mask, ids in zip(kept, COMPLETIONS, strict=True)]
    yield "prompt_ids", batch["prompt_ids"], torch.tensor([[PAD, *ids][-2:] for ids in prompts])
    yield "prompt_mask", batch["prompt_mask"], torch.tensor([[len(ids) - 1, 1] for ids in prompts])
    yield "completion_ids", batch["completion_ids"], _pad(COMPLETIONS)
    yield "completion_mask", batch["completion_mask"], _pad(kept)
    tool_masks = _pad(TOOL_MASKS) if has_tools else torch.ones(6, 3)
    yield "num_items_in_batch", batch["num_items_in_batch"], (_pad(kept) * tool_masks).sum()
    yield "the product of masks", completion_mask(batch), _pad(kept) * tool_masks
    advantages = _advantages(trainer.scale_rewards, trainer.multi_objective_aggregation)
    yield "advantages", batch["advantages"], advantages[len(COMPLETIONS) :]
    # An update lies between the batch and its last use if the window is not a multiple of its 2 · 2 micro-batches.
    is_stale = trainer.args.gradient_accumulation_steps % 4 != 0
    for column, is_scored, score_of in (
        ("old_per_token_logps", is_stale, -1.0),
        ("ref_per_token_logps", trainer.beta != 0.0, -2.0),
    ):
        yield f"whether {column} is scored", column in batch, is_scored
        if is_scored:
            yield column, batch[column], torch.full((6, 3), score_of)
    totals = weighted_sum(REWARDS, WEIGHTS)
    totals = totals[~totals.isnan()]
    compares_groups = trainer.scale_rewards != "batch" and trainer.multi_objective_aggregation == "sum_then_normalize"
    metrics = {
        "reward": totals.mean(),
        "reward_std": totals.std(),
        "frac_reward_zero_std": GROUP / len(REWARDS) if compares_groups else 0.0,
        "completions/mean_length": fmean(map(sum, TOOL_MASKS) if has_tools else map(len, COMPLETIONS)),
        "completions/clipped_ratio": 2 / 6,
    }
    for name, value in metrics.items():
        yield f"the metric {name}", trainer._metrics["train"][name], torch.tensor([value])


def _pad(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[*row, 0, 0][:3] for row in rows])


def _advantages(scale: str, aggregation: str) -> torch.Tensor:
    """Return the closed form of the advantages of [`REWARDS`], shape `(12,)`."""
    if aggregation == "normalize_then_sum":
        columns = [_normalized(column.view(-1, GROUP)).flatten() for column in REWARDS.unbind(1)]
        totals = weighted_sum(torch.stack(columns, dim=1), WEIGHTS)
        advantages = (totals - totals.nanmean()) / _deviation(totals)
    else:
        totals = weighted_sum(REWARDS, WEIGHTS)
        groups = totals.view(-1, GROUP)
        if scale == "group":
            advantages = _normalized(groups)
        else:
            advantages = _centered(groups) / (_deviation(totals) if scale == "batch" else 1.0)
    return advantages.flatten().nan_to_num(0.0)


def _centered(groups: torch.Tensor) -> torch.Tensor:
    return groups - groups.nanmean(dim=1, keepdim=True)


def _normalized(groups: torch.Tensor) -> torch.Tensor:
    return _centered(groups) / torch.stack([_deviation(group) for group in groups])[:, None]


def _deviation(values: torch.Tensor) -> torch.Tensor:
    """Return what TRL divides by. Not with TRL's `nanstd`, which is part of what is compared."""
    return values[~values.isnan()].std() + 1e-4


# ------------------------------------------------------------------------------------------------------------- buffer


def _compare_buffer(grpo: type, config: type) -> Values:
    """Compare the rows of each micro-batch: of 2 a pass, in 2 passes, of one shuffled generation batch."""
    trainer = _make_trainer(grpo, config, {}, training=True)
    sampled = []

    def sample(inputs):
        sampled.append(trainer._step)
        return {"advantages": torch.arange(4.0) + 10 * len(sampled), "num_items_in_batch": torch.tensor(37)}

    trainer._generate_and_score_completions = sample
    torch.manual_seed(5)
    batches = []
    for trainer._step in range(5):
        batches.append(trainer._prepare_inputs([]))
    yield "the micro-batches before which it is sampled", sampled, [0, 4]
    torch.manual_seed(5)
    order = torch.randperm(4).float()
    rows = torch.cat([batch["advantages"] for batch in batches[:2]])
    yield "the order of its rows", rows, order + 10
    yield "whether both passes have the same dicts", [batches[2] is batches[0], batches[3] is batches[1]], [True, True]
    trainer._buffered_inputs = [{}, {"advantages": "restored"}]
    trainer._step = 7
    yield "what is restored", trainer._prepare_inputs([]), {"advantages": "restored"}
