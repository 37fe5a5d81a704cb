"""
Internals of TRL and transformers that trl-prorl depends on, checked when the first trainer is made.

If a new version no longer calls a method that we override, or no longer reads a column or an attribute, nothing fails:
the run would train something else. So the code of the installed version is searched for these names.
"""

import inspect
import itertools
import logging
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from packaging.version import Version

from .errors import InputError
from .supported import VERSIONS


logger = logging.getLogger(__name__)

CLASSES = {
    "GRPOTrainer": "trl.trainer.grpo_trainer",
    "Trainer": "transformers.trainer",
    "VLLMGeneration": "trl.generation.vllm_generation",
}


class Fact(NamedTuple):
    """
    What trl-prorl depends on in a method, and in the methods of its class that it calls and that are not overridden.

    Attributes:
        method (`str`): Class and name of the method.
        calls (`tuple[str, ...]`): Methods that it calls, in this order.
        uses (`tuple[str, ...]`): Arguments, attributes, columns and metrics that occur in it.
    """

    method: str
    calls: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


# Columns of a generation batch: TRL fills them, and its loss reads them.
COLUMNS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "num_items_in_batch",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)
FACTS = (
    # Making a trainer: arguments that are read by name, and attributes that are read or set.
    Fact(
        "GRPOTrainer.__init__",
        uses=(
            "train_dataset",
            "eval_dataset",
            "processing_class",
            "callbacks",
            "optimizers",
            "quantization_config",
            "peft_config",
            "rollout_func",
            "environment_factory",
            "beta",
            "generation_config",
            "ref_model",
            "reward_func_names",
            "reward_funcs",
            "reward_weights",
            "_buffered_inputs",
            "_entropy_bonus_enabled",
            "_is_vlm",
            "_logs",
            "_metrics",
            "_multi_environment",
            "_pending_extra_logs",
            "_pending_metrics",
            "_step",
            "_tokenizer",
        ),
    ),
    # Training: what is loaded and created, in which order.
    Fact("Trainer.train", calls=("_load_from_checkpoint", "_inner_training_loop"), uses=("is_in_train",)),
    Fact(
        "Trainer._inner_training_loop",
        calls=(
            "_get_train_sampler",
            "compute_steps",
            "load_from_json",
            "create_optimizer",
            "create_scheduler",
            "_load_optimizer_and_scheduler",
            "on_train_begin",
            "_evaluate",
            "_run_epoch",
            "log",
            "_load_best_model",
        ),
        uses=("skip_scheduler", "global_step", "should_training_stop"),
    ),
    Fact("Trainer._load_from_checkpoint", calls=("_issue_warnings_after_load",), uses=("load_adapter",)),
    Fact("Trainer._load_best_model", calls=("_issue_warnings_after_load",), uses=("best_model_checkpoint",)),
    # A step, from its batch to its row.
    Fact(
        "Trainer._run_epoch",
        calls=(
            "get_batch_samples",
            "_set_sync_gradients",
            "training_step",
            "_get_grad_norm",
            "on_pre_optimizer_step",
            "on_step_end",
            "_maybe_log_save_evaluate",
            "on_epoch_end",
        ),
        uses=("current_gradient_accumulation_steps", "grad_norm", "max_grad_norm"),
    ),
    Fact("GRPOTrainer.training_step", calls=("training_step",), uses=("_step",)),
    Fact("Trainer.training_step", calls=("_prepare_inputs", "compute_loss", "backward")),
    Fact(
        "GRPOTrainer._prepare_inputs",
        calls=("_generate_and_score_completions", "shuffle_sequence_dict", "split_tensor_dict"),
        uses=("_step", "_buffered_inputs", "steps_per_generation", "num_iterations"),
    ),
    Fact(
        "GRPOTrainer._generate_and_score_completions",
        calls=("_generate", "_get_per_token_logps_and_entropies", "_calculate_rewards"),
        uses=(
            "beta",
            "ref_model",
            "use_adapter",
            "ref",
            "batch_size",
            *COLUMNS,
            "reward",
            "reward_std",
            "frac_reward_zero_std",
        ),
    ),
    Fact(
        "GRPOTrainer._generate",
        calls=("_generate_single_turn",),
        uses=("env_mask", "completions/mean_length", "completions/clipped_ratio"),
    ),
    Fact("GRPOTrainer._tokenize_prompts", uses=("_batch_environments",)),
    Fact(
        "GRPOTrainer._generate_single_turn",
        uses=("_last_loaded_step", "generation_config", "generation_kwargs", "model_wrapped", "generate"),
    ),
    Fact("GRPOTrainer._get_per_token_logps_and_entropies", uses=("fused_lm_head", "log_probs", "entropy")),
    Fact("GRPOTrainer.compute_loss", calls=("_get_per_token_logps_and_entropies",)),
    Fact(
        "GRPOTrainer._compute_loss",
        uses=(
            "beta",
            "epsilon_low",
            "epsilon_high",
            *COLUMNS,
            "current_gradient_accumulation_steps",
            "entropy",
            "kl",
            "policy_loss",
            "clip_ratio/region_mean",
        ),
    ),
    Fact(
        "Trainer._maybe_log_save_evaluate",
        calls=("log", "_evaluate", "_determine_best_metric", "_save_checkpoint"),
        uses=("should_log", "should_evaluate", "should_save"),
    ),
    Fact("GRPOTrainer.log", calls=("log",), uses=("_metrics", "_logs", "num_completions_to_print")),
    # Evaluations.
    Fact("Trainer._evaluate", calls=("evaluate",)),
    Fact("Trainer.evaluate", calls=("evaluation_loop", "log"), uses=("metric_key_prefix",)),
    Fact("GRPOTrainer.prediction_step", calls=("_prepare_inputs", "compute_loss")),
    # Checkpoints and the Hub.
    Fact("GRPOTrainer._save_checkpoint", calls=("create_model_card", "_save_checkpoint")),
    Fact(
        "Trainer._save_checkpoint",
        calls=("_get_output_dir", "save_model", "save_to_json", "_push_from_checkpoint"),
        uses=("best_model_checkpoint",),
    ),
)
VLLM_FACTS = (
    Fact("GRPOTrainer._generate_single_turn", calls=("sync_weights", "generate"), uses=("_last_loaded_step",)),
    Fact("VLLMGeneration.__init__", uses=("LLM",)),
    Fact("VLLMGeneration.sync_weights", uses=("_iter_named_params", "merge_adapter", "unmerge_adapter")),
    Fact("VLLMGeneration.generate", calls=("generate",), uses=("llm", "sampling_params", "prompt_token_ids")),
)


@cache
def check_upstream(trainer: type, facts: tuple[Fact, ...] = FACTS) -> None:
    """
    Raise an error if TRL or transformers lacks something that trl-prorl depends on. Runs once per process.

    Args:
        trainer (`type`): Our trainer, whose methods override TRL's.
        facts (`tuple[Fact, ...]`, *optional*): What trl-prorl depends on.

    Raises:
        InputError: A library does not fit.
    """
    ours = {}
    for cls in trainer.__mro__:
        if cls.__module__.partition(".")[0] == __package__:
            ours = {**vars(cls), **ours}
    grpo = _find_class("GRPOTrainer")
    for name, method in ours.items():
        original = inspect.unwrap(getattr(grpo, name, None))
        if isinstance(method, FunctionType) and isinstance(original, FunctionType):
            owner = next(cls for cls in grpo.__mro__ if name in vars(cls))
            _check_arguments(owner, method, original)
    for fact in facts:
        _check_fact(fact, grpo, ours)


@cache
def tell_of_untested() -> None:
    """Log a warning if a library is newer than the newest tested version."""
    for library, tested in VERSIONS.items():
        installed = version(library)
        if _minor(installed) > _minor(tested):
            logger.warning(
                "%s %s is newer than the newest tested version, %s. It passed the compatibility check. To be safe: %s",
                library,
                installed,
                tested,
                _cure(library),
            )


def with_cure(error: ImportError) -> ImportError:
    """Return an import error with the version that fits, if a name of TRL or transformers has moved."""
    library = (error.name or "").partition(".")[0]
    if library not in VERSIONS or error.name == library:  # else it is not installed
        return error
    return ImportError(misfit(library, error.msg), name=error.name, path=error.path)


def misfit(library: str, what: str) -> str:
    """Return the error for a library in which something has changed."""
    cure = f"Install the newest tested version, {VERSIONS[library]}: {_cure(library)}."
    return f"{library} {version(library)} is not supported: {what}. {cure}"


def _check_arguments(owner: type, method: FunctionType, original: FunctionType) -> None:
    """Raise an error if a method of TRL has other arguments than our override."""
    theirs = _arguments(original.__code__)
    code = method.__code__
    mine = _arguments(code)
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    required = original.__code__.co_argcount - len(original.__defaults__ or ()) - 1
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if theirs[: len(mine)] != mine or (required > len(mine) and not takes_more) or not set(named) <= set(theirs):
        shown = theirs[: max(len(mine), required)]
        _refuse(owner, f".{method.__name__} takes ({', '.join(shown)}), not ({', '.join((*mine, *named))})")


def _check_fact(fact: Fact, grpo: type, ours: dict[str, Any]) -> None:
    owner_name, _, name = fact.method.partition(".")
    owner = _find_class(owner_name)
    method = getattr(owner, name, None)
    if method is None:
        _refuse(owner, f" has no {name}")
    method = inspect.unwrap(method)
    # A helper is looked up in TRL's trainer, whichever class calls it.
    names = _names(method.__code__, grpo if issubclass(grpo, owner) else owner, ours, set())
    for used in (*fact.calls, *fact.uses):
        if used not in names:
            _refuse(owner, f".{name} does not use {used}")
    for before, after in itertools.pairwise(fact.calls):
        if names.index(after) < names.index(before):
            _refuse(owner, f".{name} calls {after} earlier than it did")


def _names(code: CodeType, owner: type, ours: dict[str, Any], seen: set[CodeType]) -> list[object]:
    """Return the arguments, names and constants in a code object. The names in a helper follow the helper's name."""
    seen.add(code)
    names = [*code.co_varnames[1 : code.co_argcount]]
    for name in code.co_names:
        names.append(name)
        helper = None if name in ours else getattr(owner, name, None)
        if isinstance(helper, FunctionType):
            inner = inspect.unwrap(helper).__code__
            if inner not in seen:
                names += _names(inner, owner, ours, seen)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant, owner, ours, seen)
        elif isinstance(constant, tuple):  # the names of arguments in a call, the keys of a dict
            names += constant
        else:
            names.append(constant)
    return names


def _arguments(code: CodeType) -> tuple[str, ...]:
    """Return the names of a method's arguments after `self`, in order."""
    return code.co_varnames[1 : code.co_argcount]


def _find_class(name: str) -> type:
    return getattr(import_module(CLASSES[name]), name)


def _minor(of: str) -> tuple[int, ...]:
    return Version(of).release[:2]


def _cure(library: str) -> str:
    return f'pip install "{library}=={".".join(map(str, _minor(VERSIONS[library])))}.*"'


def _refuse(owner: type, what: str) -> None:
    raise InputError(misfit(owner.__module__.partition(".")[0], f"{owner.__name__}{what}"))
