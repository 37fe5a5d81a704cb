"""
The trainings of the soak: A, B and C by their recipe scripts, a few steps of a tiny model each. They differ in the
content of their checkpoints.
"""

from pathlib import Path
from random import Random

from tiny_run import save_tiny_model

from trl_prorl.embedded.shipped import byte_tokenizer


RECIPES = Path(__file__).parents[2] / "recipes"

# Two prompts a batch: an epoch ends after two batches, and a resume falls into a later one too.
COMMON = {
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "train_rows": 4,
    "task_level": 1,
    "max_completion_length": 8,
    "learning_rate": 2e-3,
    "temperature": 2.0,
    "logging_steps": 2,
    # The task's reward is 0 for a model that has learned nothing; the length's differs from completion to completion.
    "length_reward": "target",
    "length_target": 3,
    "length_cost": 0.1,
    "disable_tqdm": True,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "eval_rows": 2,
    "per_device_eval_batch_size": 8,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 3,
    "ddp_find_unused_parameters": False,
}
LORA = {"lora_r": 4, "lora_alpha": 8}
# A generation batch that lasts for several steps, so that most checkpoints lie inside one.
SPREAD = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward", "eval_steps": 2}

CASES = {
    "A": ("A", {**LORA, "ref_reset_every": 3, "kl_target": 0.01, "kl_horizon": 5, "save_steps": 3, "guard_gap": 0.2}),
    "A, full": ("A", {"use_peft": False, **SPREAD, "ref_reset_every": 1, "ref_reset_cooldown": 4, **BEST}),
    "A, base anchor": (
        "A",
        {**LORA, "ref_reset_every": 3, "beta_base": 0.2, "base_anchor_every": 2, "elastic_reset_every": 5, **BEST},
    ),
    "B": (
        "B",
        {
            **LORA,
            "num_iterations": 3,
            "lr_scheduler_type": "cosine",
            "entropy_floor": 100.0,
            "entropy_patience": 5,
        },
    ),
    # Its logs lie between its checkpoints.
    "B, full": ("B", {"use_peft": False, **SPREAD, "num_iterations": 2, "log_completions": True, "logging_steps": 3}),
    "C by a KL spike, hard": (
        "C",
        {
            **LORA,
            "ref_reset_every": 0,
            "ref_reset_kl": 1e-3,
            "ref_reset_kl_window": 2,
            "lr_scheduler_type": "cosine",
            "optimizer_reset_rewarmup_steps": 5,
        },
    ),
    "C by a stall, soft, full": (
        "C",
        {
            "use_peft": False,
            "ref_reset_every": 0,
            "ref_reset_stall": 1,
            "stop_stall": 9,
            "eval_steps": 2,
            "optimizer_reset": "soft",
            "eval_on_start": True,
            "optimizer_reset_rewarmup_steps": 9,
            "lr_scheduler_type": "linear",
            "save_steps": 1,
        },
    ),
    "C, asymmetric, dynamic sampling": (
        "C",
        {
            **LORA,
            "ref_reset_every": 3,
            "optimizer_reset": "asym",
            "dynamic_sampling_rounds": 1,
            "prompt_pool": True,
            "task": "sorting",
            "task_options": '{"reward": "inclusion_ordering"}',
        },
    ),
    "C, step count": ("C", {**LORA, "ref_reset_every": 3, "optimizer_reset": "step", "lr_scheduler_type": "cosine"}),
    "A, growth": (
        "A",
        {**LORA, "ref_reset_every": 3, "lora_growth_every": 3, "lora_growth_step": 2, "save_steps": 3},
    ),
}
ALONE = ("A, growth",)  # with one process only
# Several processes share a case's prompts.
SHARED = ("per_device_train_batch_size", "per_device_eval_batch_size")


def draw_case(seed: int, number: int, cases: list[str], processes: int | None) -> tuple[str, int]:
    """The case of the trial of a number from 0, and how many processes it has, unless that is given."""
    order = Random(f"{seed} cases").sample(cases, len(cases))
    case = order[number % len(order)]
    drawn = processes or Random(f"{seed} {number} processes").choice((1, 1, 1, 2))
    return case, 1 if case in ALONE else drawn


def command(case: str, model: str, processes: int) -> tuple[str, list[str]]:
    """The script of a case and its arguments, all but `output_dir`."""
    variant, keys = CASES[case]
    keys = COMMON | keys
    keys = keys | {key: keys[key] // processes for key in SHARED}
    arguments = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    return str(RECIPES / f"grpo_variant{variant}.py"), ["--model_name_or_path", model, *arguments]


def make_model(folder: Path) -> str:
    """It writes digits and ends at lengths of any kind."""
    tokenizer = byte_tokenizer()
    return save_tiny_model(folder, tokenizer, likely=[*"0123456789", "Ġ", tokenizer.eos_token])
