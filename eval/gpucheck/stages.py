"""The seconds of a step by stage, of TRL's trainer and of ours alike."""

from pathlib import Path

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.training import lines


STAGES = ("old", "reference", "update", "other")  # without generation, which is measured by itself
OURS = {"old": "time_old", "reference": "time_ref", "update": "time_update"}  # keys of the record


def watch_scoring(trainer: GRPOTrainer) -> None:
    """
    Let a trainer's stopwatch tell TRL's forwards apart that score a batch: those of the reference, which is a model
    of its own or the policy without its adapter, and those of the old policy.
    """
    score = trainer._get_per_token_logps_and_entropies
    inside = {"scoring": False}
    generate = trainer._generate_and_score_completions

    def scoring(*args, **kwargs):
        inside["scoring"] = True
        try:
            return generate(*args, **kwargs)
        finally:
            inside["scoring"] = False

    def watched(model, *args, **kwargs):
        if not inside["scoring"]:
            return score(model, *args, **kwargs)
        name = "reference" if model is trainer.ref_model or of_reference(model) else "old"
        return trainer.watch.around(name, score)(model, *args, **kwargs)

    trainer._generate_and_score_completions = scoring
    trainer._get_per_token_logps_and_entropies = watched


def of_reference(model: torch.nn.Module) -> bool:
    """Whether a model with LoRA is the reference just now: without its adapter, or with another one."""
    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or "default" not in layer.active_adapters)


def of_a_step(trainer: GRPOTrainer, steps: int) -> dict[str, float]:
    """
    Mean seconds of a step of the last training, by stage; the stopwatch's, and for our trainer the record's.

    Args:
        trainer ([`~trl.GRPOTrainer`]): With `watch`; its stopwatch was cleared before the training.
        steps (`int`): Optimizer steps of the training.
    """
    whole = trainer.watch.seconds["step"] / steps
    if isinstance(trainer, ProRLTrainer):
        rows = lines(Path(trainer.run_dir, "metrics.jsonl"))[-steps:]
        found = {stage: sum(row[key] for row in rows) / steps for stage, key in OURS.items()}
    else:
        seconds = trainer.watch.seconds
        found = {stage: seconds[stage] / steps for stage in ("old", "reference")}
        found["update"] = (seconds["step"] - seconds["scoring"]) / steps
    return found | {"other": whole - sum(found.values()), "step": whole}
