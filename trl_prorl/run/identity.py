"""
The identity of a run: every argument that can change a number, the data, and the starting model.

`keys.py` declares free and fixed keys; rules that depend on the checkpoint are here.
"""

import dataclasses
import datetime
import decimal
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from datasets import Dataset
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.optim.lr_scheduler import LambdaLR
from transformers.optimization import AdafactorSchedule

from ..cli.prompt_rows import is_transformed
from ..errors import naming
from ..keys import FIXED_KEYS, FREE_KEYS, KEYS, OTHER_OPTIMIZER, TRIGGER_KEYS, is_on, switched_off, switched_on
from ..optimizer import full_name, inner_of
from ..supported import ENDLESS_SCHEDULES, PATH_DEPENDENT_SCHEDULES
from ..text import short
from ..upstream.weights import settings_of
from .checkpoint_files import buffer_file
from .files import json_sha256
from .log_files import read_json
from .provenance import as_plain, remove_secrets


IDENTITY_FILE = "identity.json"

# True if a trigger or the best model depends on evaluations, or if they use the training's random numbers, as TRL's
# do. If not, keys of evaluations are free.
EVALUATIONS_ACT = "evaluations change the training"
EVALUATION_ROWS = "rows of the evaluation set"
TOKENIZER = "the tokenizer (vocabulary, special tokens)"
TEMPLATE = "the chat template"
ENDS = "tokens that end a completion"
EVALUATION_KEYS = frozenset(
    "eval_strategy eval_steps eval_delay eval_on_start eval_rows per_device_eval_batch_size num_generations_eval "
    "eval_accumulation_steps eval_use_gather_object batch_eval_metrics prediction_loss_only metric_for_best_model "
    "greater_is_better".split()
    + [EVALUATION_ROWS]
)
# Chosen by the trainer if not set, see `choose_best_metric` in cli/checks.py.
CHOSEN_LATER = ("metric_for_best_model", "greater_is_better")
LENGTHS = frozenset(["max_steps", "num_train_epochs"])
VALUES_HASHED = 64  # at each end of a tensor
ROWS_HASHED = 1000  # at once
# The same state, computed by another kernel.
SAME_OPTIMIZER = {"adamw_torch", "adamw_torch_fused"}
SCHEDULE_KEYS = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
# Division of a generation batch into micro-batches and steps.
BATCH_KEYS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations",
    "num_iterations",
    "processes",
)
SPLIT_BATCH = "its half-used generation batch was split with the old value; at the end of a batch it can be changed"
ROWS_NOT_SCORED = "its half-used generation batch has no log-probabilities of π_old for rows without gradient"
OWN_OPTIMIZER = "the optimizer (optimizers)"
OPTIMIZER_CLASS = f"class of {OWN_OPTIMIZER}"
OWN_RATES = f"lr of {OWN_OPTIMIZER}"
OWN_SCHEDULE = "the schedule (optimizers)"
SCHEDULE_CLASS = f"class of {OWN_SCHEDULE}"
OWN_FACTORS = f"factors of {OWN_SCHEDULE}"
FREE_OF_SCHEDULE = (SCHEDULE_CLASS, OWN_FACTORS)
COMPARED_STEPS = (0, *(2**power for power in range(17)))
# Of a schedule's state. The first is compared as that of the optimizer, the second by values.
MOVING = {"base_lrs", "lr_lambdas", "last_epoch", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i"}
PRIVATE_SETTINGS = {"_milestones", "_schedule_phases", "_anneal_func_type"}  # of SequentialLR and OneCycleLR
SCALING = "scaling of the adapter (lora_alpha, lora_r)"
SCALING_BY_MODULE = "scaling of every module of the adapter (alpha, alpha_pattern, rank_pattern)"
REFERENCE_MOVED = "without resets the reference is the base model, which this run has moved (it may be raised)"


def check_same_run(checkpoint: Path, now: Mapping[str, Any], allowed: bool) -> dict[str, list[Any]]:
    """
    Return the [`differences`] from a checkpoint to the identity `now`. Raises `ValueError`: they are not `allowed`
    (`allow_config_change`), or could not act.
    """
    with naming(checkpoint / IDENTITY_FILE):
        changed = differences(remove_secrets(read_json(checkpoint / IDENTITY_FILE)), now)
    if changed and not allowed:
        listed = "; ".join(f"{key}: {short(old)} -> {short(new)}" for key, (old, new) in changed.items())
        if not changed.keys() - LENGTHS:
            schedule = f"lr_scheduler_type={now.get('lr_scheduler_type')!r}, warmup_steps={now.get('warmup_steps')}"
            listed += (
                f" (with {schedule} the learning rate of every step depends on the length of the run; with constant, "
                "or constant_with_warmup and a whole number of warmup_steps, it does not)"
            )
        raise ValueError(
            f"resume_from_checkpoint with other arguments would change the run: {listed}. Restore these values, or "
            "set allow_config_change: true (--allow_config_change true) to resume with the new ones (logged as an "
            "event)."
        )
    with naming(checkpoint / IDENTITY_FILE):
        check_change(changed, now, checkpoint)
    return changed


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """
    Return `{key: [then, now]}` for every differing key of both.

    Keys of only one side do not count (a script has no task keys), nor do "on" and "auto" (but `merge_micro_batches:
    auto` merges fewer), nor keys of evaluations without effect on the training.
    """
    left_out = {EVALUATIONS_ACT}
    if then.get(EVALUATIONS_ACT) is False and not now.get(EVALUATIONS_ACT):
        left_out |= EVALUATION_KEYS
    found = {}
    for key in sorted(then.keys() - left_out):
        is_alike = {str(then[key]), str(now.get(key))} == {"on", "auto"} and key != "merge_micro_batches"
        if key in now and then[key] != now[key] and not is_alike:
            found[key] = [then[key], now[key]]
    return found


def check_change(changed: Mapping[str, list[Any]], now: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise `ValueError` for [`differences`] that could not act."""
    fixed = {**FIXED_KEYS, OPTIMIZER_CLASS: OTHER_OPTIMIZER}
    for key, declared in KEYS.items():
        if declared.cannot_start and switched_on(changed, key):
            fixed[key] = declared.cannot_start
        if declared.cannot_stop and switched_off(changed, key):
            fixed[key] = declared.cannot_stop
    resets = now.get("guard_gap_action") == "reset" or any(is_on(now.get(key)) for key in TRIGGER_KEYS)
    if now.get("beta") and not resets:
        fixed |= {key: REFERENCE_MOVED for key in TRIGGER_KEYS if switched_off(changed, key)}
    for key in changed:
        if key.endswith(f" of {OWN_SCHEDULE}") and key not in FREE_OF_SCHEDULE:
            fixed[key] = "a resume takes it from the checkpoint"
    old_class, new_class = changed.get(SCHEDULE_CLASS, (None, None))
    lambdas = (None, full_name(LambdaLR))  # `None`: that of `lr_scheduler_type`
    if new_class in lambdas and old_class not in lambdas:
        fixed[SCHEDULE_CLASS] = "a LambdaLR cannot go on from another schedule's state"
    if set(changed.get("optim", ())) <= SAME_OPTIMIZER:
        del fixed["optim"]
    classes = [str(name) for name in changed.get(OPTIMIZER_CLASS, ())]
    moved = len({name.rpartition(".")[2] for name in classes}) == 1
    if moved and any(name.startswith("__main__.") for name in classes):
        del fixed[OPTIMIZER_CLASS]  # a script's class that was moved to a module, or back
    schedules = {*changed.get("lr_scheduler_type", ()), now.get("lr_scheduler_type")}
    if schedules & PATH_DEPENDENT_SCHEDULES:
        rates = (*SCHEDULE_KEYS, OWN_RATES)
        fixed |= dict.fromkeys(rates, "this schedule's learning rate depends on earlier rates")
    if checkpoint.joinpath(buffer_file(0)).exists():
        fixed |= dict.fromkeys(BATCH_KEYS, SPLIT_BATCH)
        if switched_on(changed, "beta"):
            fixed["beta"] = "its half-used generation batch has no log-probabilities of the reference"
        fixed["kl_in"] = "the rewards of its half-used generation batch have the KL, or not, by the old value"
        then = now | {key: old for key, (old, _) in changed.items()}
        if then.get("reuse_old_logps") and then.get("skip_zero_rows") is not False:
            if switched_on(changed, "beta_old"):
                fixed["beta_old"] = ROWS_NOT_SCORED
            if switched_off(changed, "drop_zero_rows"):
                fixed["drop_zero_rows"] = ROWS_NOT_SCORED
            if now.get("skip_zero_rows") is False:
                fixed["skip_zero_rows"] = ROWS_NOT_SCORED
            if then.get("skip_zero_rows") is None and switched_on(changed, "entropy_floor"):
                fixed["entropy_floor"] = ROWS_NOT_SCORED
    for key, (old, new) in changed.items():
        if key in fixed:
            raise ValueError(
                f"{key}: {old!r} -> {new!r} cannot be changed by a resume from {checkpoint.name}: {fixed[key]}. Keep "
                f"{old!r}, or start a new run."
            )


def changing_keys(*configs: Any) -> dict[str, Any]:
    """Return the arguments that can change numbers, as JSON values without secrets."""
    keys = {}
    for config in configs:
        left_out = FREE_KEYS
        if _is_endless(config):
            left_out = FREE_KEYS | LENGTHS
        for field in dataclasses.fields(config):
            value = getattr(config, field.name, None)
            is_open = value is None and field.name in CHOSEN_LATER
            if field.init and field.name not in left_out and not is_open:
                keys[field.name] = value
    return remove_secrets(as_plain(keys))


def _is_endless(config: Any) -> bool:
    schedule = getattr(getattr(config, "lr_scheduler_type", None), "value", None)
    warmup = getattr(config, "warmup_steps", 0) or 0
    warms_by_share = schedule == "constant_with_warmup" and 0 < warmup < 1  # of all steps
    return schedule in ENDLESS_SCHEDULES and not warms_by_share


def dataset_hash(dataset: Any) -> str | None:
    """Hash a dataset's rows, of images the column's name alone; `None` if it cannot be indexed."""
    if not isinstance(dataset, Dataset):
        return None
    digest = hashlib.sha256(str(len(dataset)).encode())
    rows = dataset
    if not is_transformed(dataset):  # a transform counts, a format does not
        images = [name for name, feature in dataset.features.items() if _is_decoded(feature)]
        digest.update(repr(images).encode())
        rows = dataset.with_format(None).remove_columns(images).iter(ROWS_HASHED)
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=_as_text).encode())
    return digest.hexdigest()


def _is_decoded(feature: Any) -> bool:
    """Return whether a column, or the lists in it, has images or the like: they take long to decode."""
    return hasattr(getattr(feature, "feature", feature), "decode_example")


def _as_text(value: Any) -> str:
    """Return a value of a row that JSON lacks as text; an image, or another object, as its type alone."""
    is_short = isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal | bytes)
    return str(value) if is_short else type(value).__name__


@torch.no_grad()
def weights_hash(
    named_tensors: Iterable[tuple[str, torch.Tensor]], trained_whole: bool = False, whole: bool = False
) -> str:
    """
    Hash the name, shape and a few values of every tensor; with `trained_whole`, all values of those that are trained,
    with `whole`, of all.
    """
    digest = hashlib.sha256()
    for name, tensor in named_tensors:
        flat = tensor.detach().flatten()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        is_whole = whole or (trained_whole and tensor.requires_grad)
        for part in flat.split(2**24) if is_whole else (flat[:VALUES_HASHED], flat[-VALUES_HASHED:]):
            digest.update(part.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def base_parameters(policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    others = set(getattr(policy, "peft_config", {}))
    return [(name, param) for name, param in policy.named_parameters() if others.isdisjoint(name.split("."))]


def describe_model(policy: torch.nn.Module) -> dict[str, Any]:
    """
    Return hashes of the starting model's weights (the second of values between those of the first), its dtypes and
    rates of dropout, the adapter's, too, and the settings by which it computes.
    """
    base = base_parameters(policy)
    trained = [param for param in policy.parameters() if param.requires_grad]
    rates = {module.p for module in policy.modules() if isinstance(module, torch.nn.Dropout)}
    settings = remove_secrets(as_plain(settings_of(policy.config.to_dict())))
    return {
        "weights of the model": weights_hash(base),
        "weights within the model's tensors": weights_hash((name, evenly_spaced(param)) for name, param in base),
        "dtypes of the model": sorted({str(param.dtype) for param in [*dict(base).values(), *trained]}),
        "dropout of the model": sorted(rates - {0.0}),
        **{f"{name} of the model's config": value for name, value in settings.items() if name != "auto_map"},
    }


def evenly_spaced(tensor: torch.Tensor) -> torch.Tensor:
    """Return as many values of a tensor as [`weights_hash`] reads at its two ends."""
    flat = tensor.detach().flatten()
    return flat[:: len(flat) // (2 * VALUES_HASHED) + 1]


def describe_rollout(trainer) -> dict[str, Any]:
    """Return the names of a script's rollout function and environments, as of rewards and tools."""
    factories = trainer.environment_factories or {}
    return {
        "rollout (rollout_func)": _name_of(trainer.rollout_func),
        "environments": {str(name): _name_of(factory) for name, factory in factories.items()},
    }


def _name_of(function: Any) -> str | None:
    if function is None:
        return None
    return getattr(function, "__name__", type(function).__name__)


def describe_tokenizer(trainer) -> dict[str, Any]:
    """Return hashes of tokenizer and chat template, and the tokens that end a completion: a script may change them."""
    tokenizer = trainer.text_tokenizer
    vocabulary = sorted(tokenizer.get_vocab().items())
    added = tokenizer("").input_ids  # around every text
    template = trainer.processing_class.chat_template
    return {
        TOKENIZER: json_sha256([vocabulary, tokenizer.special_tokens_map, added]),
        TEMPLATE: None if template is None else json_sha256(template),
        ENDS: sorted(trainer.eos_token_ids, key=str),
    }


def describe_scaling(policy: torch.nn.Module) -> dict[str, Any]:
    """
    Return the scaling factors of LoRA layers, and a hash of every module's that has one (LoRA's and LoKr's): a
    script's resume has no key for them.
    """
    found = {}
    of_lora = set()
    for name, module in policy.named_modules():
        if isinstance(module, BaseTunerLayer) and "default" in getattr(module, "scaling", {}):
            found[name] = f"{module.scaling['default']:.9g}"
            if isinstance(module, LoraLayer):
                of_lora.add(float(found[name]))
    return {SCALING: sorted(of_lora), SCALING_BY_MODULE: json_sha256(found)}


def describe_optimizer(optimizer) -> dict[str, Any]:
    """
    Return class and settings (by group) of a script's own optimizer, which no key has. The rates are those with which
    it was made: a schedule changes them.
    """
    if optimizer is None:
        return {OPTIMIZER_CLASS: None}
    groups = hyperparameters(inner_of(optimizer))
    for group in groups:
        group["lr"] = group.pop("initial_lr", group["lr"])
    names = dict.fromkeys(name for group in groups for name in group)
    settings = {f"{name} of {OWN_OPTIMIZER}": [group.get(name) for group in groups] for name in names}
    return {OPTIMIZER_CLASS: full_name(type(inner_of(optimizer))), **as_plain(settings)}


def describe_schedule(schedule) -> dict[str, Any]:
    """
    Return class and settings of a script's own schedule, of the schedules within it, and what its functions return at
    some steps. Not compared: objects in place of functions, whose state a call may change.
    """
    if schedule is None:
        return {SCHEDULE_CLASS: None}
    found = {SCHEDULE_CLASS: full_name(type(schedule))}
    functions = [one for one in getattr(schedule, "lr_lambdas", ()) if isinstance(one, FunctionType | partial)]
    factors = [_factors(function) for function in functions]
    if takes_new_rates(schedule):
        return {**found, OWN_FACTORS: factors}
    settings = {name: value for name, value in schedule.state_dict().items() if _is_setting(name)}
    if isinstance(settings.get("milestones"), Counter):  # MultiStepLR's
        settings["milestones"] = sorted(settings["milestones"].elements())
    if functions:
        settings["functions"] = factors
    parts = getattr(schedule, "_schedulers", ())
    if parts:
        settings["schedules"] = [describe_schedule(part) for part in parts]
    return {**found, **{f"{name} of {OWN_SCHEDULE}": value for name, value in as_plain(settings).items()}}


def _is_setting(name: str) -> bool:
    if name in PRIVATE_SETTINGS:
        return True
    return name not in MOVING and not name.startswith("_")


def _factors(function: Callable[[int], float]) -> list[float]:
    factors = []
    for step in COMPARED_STEPS:
        try:
            factors.append(float(function(step)))
        except Exception:  # a script's function may end with its run
            break
    return factors


def hyperparameters(optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def takes_new_rates(scheduler) -> bool:
    """Return whether a resume with changed keys gives a schedule the configured rates. Others go on from their own."""
    inner = getattr(scheduler, "scheduler", scheduler)
    return isinstance(inner, LambdaLR) and not isinstance(inner, AdafactorSchedule)


def check_rates(changed: Mapping[str, list[Any]], now: Mapping[str, Any], scheduler) -> None:
    """Raise `ValueError` for a changed learning rate that a script's schedule would ignore."""
    key = OWN_RATES if now[OPTIMIZER_CLASS] else "learning_rate"
    if key in changed and not takes_new_rates(scheduler):
        old, new = changed[key]
        name = full_name(type(getattr(scheduler, "scheduler", scheduler)))
        raise ValueError(
            f"{key}: {old!r} -> {new!r} cannot be changed by a resume with {name}, which goes on from the old one. "
            f"Keep {old!r}, or pass a LambdaLR, as most of transformers' schedules are."
        )


def restore_hyperparameters(optimizer, scheduler, made_with: list[dict[str, Any]]) -> None:
    """Restore the configured hyperparameters (`made_with`) after the states of optimizer and schedule were loaded."""
    for group, values in zip(optimizer.param_groups, made_with, strict=True):
        group.update({name: value for name, value in values.items() if name not in ("lr", "initial_lr")})
    if not takes_new_rates(scheduler):
        return
    inner = getattr(scheduler, "scheduler", scheduler)
    inner.base_lrs = [values["initial_lr"] for values in made_with]
    rates = [base * rate(inner.last_epoch) for base, rate in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    for group, rate, base in zip(optimizer.param_groups, rates, inner.base_lrs, strict=True):
        group.update(lr=rate, initial_lr=base)
    inner._last_lr = rates
