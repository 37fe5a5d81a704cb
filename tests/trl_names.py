"""
The methods of TRL and transformers that trl-prorl overrides or calls.

If a new version no longer calls a method that we override, nothing fails: the run would train something else. So the
installed code is searched for these names.
"""

import inspect
import itertools
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any


CLASSES = {
    "GRPOConfig": "trl.trainer.grpo_config",
    "GRPOTrainer": "trl.trainer.grpo_trainer",
    "Trainer": "transformers.trainer",
    "VLLMGeneration": "trl.generation.vllm_generation",
}


# By method of TRL or transformers: our methods that it calls, directly or in a helper, in this order; and names that
# we set or read.
CALLS = {
    "GRPOTrainer.__init__": (
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "callbacks",
        "optimizers",
        "quantization_config",
        "peft_config",
        "rollout_func",
        "environment_factory",
    ),
    "Trainer.__init__": ("init_hf_repo",),
    "Trainer.train": ("_load_from_checkpoint", "_inner_training_loop"),
    "Trainer._inner_training_loop": (
        "get_train_dataloader",
        "create_optimizer",
        "_load_optimizer_and_scheduler",
        "on_train_begin",
        "_evaluate",
        "_run_epoch",
        "_finalize_training",
    ),
    "Trainer._finalize_training": ("log", "_load_best_model"),
    "GRPOTrainer.get_train_dataloader": ("_get_train_sampler",),
    "Trainer._load_from_checkpoint": ("_issue_warnings_after_load",),
    "Trainer._load_best_model": ("_issue_warnings_after_load",),
    "Trainer._run_epoch": (
        "training_step",
        "_get_grad_norm",
        "on_pre_optimizer_step",
        "on_step_end",
        "_maybe_log_save_evaluate",
    ),
    "GRPOTrainer.training_step": ("training_step", "_step"),
    "Trainer.training_step": ("_prepare_inputs", "compute_loss", "backward"),
    "GRPOTrainer._prepare_inputs": ("_step", "_buffered_inputs", "_generate_and_score_completions"),
    "GRPOTrainer._generate_and_score_completions": (
        "_generate",
        "_get_per_token_logps_and_entropies",
        "_calculate_rewards",
    ),
    "GRPOTrainer._generate": ("_generate_single_turn",),
    "GRPOTrainer._tokenize_prompts": ("_batch_environments",),
    "GRPOTrainer.compute_loss": ("_get_per_token_logps_and_entropies",),
    "Trainer._maybe_log_save_evaluate": ("log", "_evaluate", "_determine_best_metric", "_save_checkpoint"),
    "GRPOTrainer.log": ("log",),
    "Trainer._evaluate": ("evaluate",),
    "Trainer.evaluate": ("get_eval_dataloader", "evaluation_loop", "log"),
    "GRPOTrainer.prediction_step": ("compute_loss",),
    "GRPOTrainer._save_checkpoint": ("create_model_card", "_save_checkpoint"),
    "Trainer._save_checkpoint": ("_get_output_dir", "save_model", "_push_from_checkpoint"),
    "Trainer._finish_current_push": (),
    "Trainer._remove_unused_columns": (),
}
VLLM_CALLS = {
    "GRPOTrainer._generate_single_turn": ("_last_loaded_step", "sync_weights", "generate"),
    "VLLMGeneration.__init__": ("LLM",),
    "VLLMGeneration.sync_weights": ("_iter_named_params", "merge_adapter", "unmerge_adapter"),
    "VLLMGeneration.generate": ("llm", "generate"),
}


def check_names(trainer: type, with_vllm: bool = False) -> None:
    """
    Raise `ValueError` if TRL or transformers lacks a method that our trainer overrides, or no longer calls it. With
    `with_vllm`, if TRL samples otherwise with vLLM.
    """
    ours = {}
    for cls in trainer.__mro__:
        if cls.__module__.partition(".")[0] == "trl_prorl":
            ours = {**vars(cls), **ours}
    grpo = _find_class("GRPOTrainer")
    for name, method in ours.items():
        original = inspect.unwrap(getattr(grpo, name, None))
        if isinstance(method, FunctionType) and isinstance(original, FunctionType):
            owner = next(cls for cls in grpo.__mro__ if name in vars(cls))
            _check_arguments(owner, method, original)
    for method, calls in (VLLM_CALLS if with_vllm else CALLS).items():
        _check_calls(method, calls, grpo, ours)


def _check_arguments(owner: type, method: FunctionType, original: FunctionType) -> None:
    """TRL's method and our override must have the same arguments."""
    theirs = _arguments(original.__code__)
    code = method.__code__
    mine = _arguments(code)
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    required = original.__code__.co_argcount - len(original.__defaults__ or ()) - 1
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if theirs[: len(mine)] != mine or (required > len(mine) and not takes_more) or not set(named) <= set(theirs):
        shown = theirs[: max(len(mine), required)]
        _refuse(owner, f".{method.__name__} takes ({', '.join(shown)}), not ({', '.join((*mine, *named))})")


def _check_calls(caller: str, calls: tuple[str, ...], grpo: type, ours: dict[str, Any]) -> None:
    """The method must have these names in this order."""
    owner_name, _, name = caller.partition(".")
    owner = _find_class(owner_name)
    method = getattr(owner, name, None)
    if method is None:
        _refuse(owner, f" has no {name}")
    # A helper is looked up in TRL's trainer, whichever class calls it.
    names = _names(inspect.unwrap(method).__code__, grpo if issubclass(grpo, owner) else owner, ours, set())
    for called in calls:
        if called not in names:
            _refuse(owner, f".{name} does not use {called}")
    for before, after in itertools.pairwise(calls):
        if names.index(after) < names.index(before):
            _refuse(owner, f".{name} calls {after} earlier than it did")


def _names(code: CodeType, owner: type, ours: dict[str, Any], seen: set[CodeType]) -> list[object]:
    """Return arguments, names and constants in a code object; a helper's follow its name."""
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
    return code.co_varnames[1 : code.co_argcount]


def _find_class(name: str) -> type:
    return getattr(import_module(CLASSES[name]), name)


def _refuse(owner: type, what: str) -> None:
    raise ValueError(f"{owner.__name__}{what}")
