"""The arms that are compared, by name a trainer's class and the keys that define it, and the settings."""

import argparse
import itertools

from trl_prorl.eval.stepcost.batches import Batches, mean_answer


GRPOTrainer, ProRLTrainer = "trl:GRPOTrainer", "trl_prorl:ProRLTrainer"  # which take seconds to import
BASELINE = "TRL β>0"
ACCELERATED = {"reuse_old_logps": True}
PACKED = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {
    BASELINE: (GRPOTrainer, {"beta": 0.02}),
    "TRL β=0": (GRPOTrainer, {"beta": 0.0}),
    "A0": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "ref_compute": "naive_epoch", **ACCELERATED}),
    "A": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **ACCELERATED}),
    "B": (ProRLTrainer, {"beta_old": 0.02, **ACCELERATED}),
    "C": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **ACCELERATED}),
    "plain packed": (ProRLTrainer, {"beta": 0.0, **PACKED}),
    "A packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **PACKED}),
    "B packed": (ProRLTrainer, {"beta_old": 0.02, **PACKED}),
    "C packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **PACKED}),
}
FP32_ARMS = {  # frozen weights in fp32 where those of the run are in bf16; both compute in bf16
    f"{name}, fp32": (GRPOTrainer, ARMS[name][1] | {"dtype": "float32"}) for name in (BASELINE, "TRL β=0")
}
OVERHEAD_ARMS = {BASELINE: ARMS[BASELINE], "ours, all off": (ProRLTrainer, {"beta": 0.02})}
FLOOR = "floor"  # no trainer: what the products and the weights' way through memory cost
GROWTH_ARMS = (BASELINE, "A packed", "B packed")


def settings(args: argparse.Namespace):
    """
    Title, arms, batches, inner passes, gradient checkpointing and whether to generate, of every setting asked for.
    """
    checkpointing = {"off": [False], "on": [True], "both": [False, True]}[args.checkpointing]
    asked = args.arms or [*ARMS, FLOOR]
    arms = {name: arm for name, arm in (ARMS | FP32_ARMS).items() if name == BASELINE or name in asked}
    if FLOOR in asked and args.mode == "arms":
        arms[FLOOR] = None
    if args.mode == "growth":
        arms = {name: arm for name, arm in arms.items() if name in GROWTH_ARMS}
        sizes = [(length, 8) for length in args.lengths] + [(256, group) for group in args.groups if group != 8]
        for length, group in sizes:
            args.num_generations = args.micro_batch = group
            if args.spread:
                scale = length / mean_answer(args.task)
                title, batches = f"{length} tokens on average, G={group}", Batches(args, scale)
            else:
                title, batches = f"every completion of {length} tokens, G={group}", Batches(args, 1.0, fixed=length)
            yield title, arms, batches, 2, checkpointing[0], not args.no_generation
        return
    for iterations, scale, checkpoint in itertools.product(args.iterations, args.scale, checkpointing):
        chosen = OVERHEAD_ARMS if args.mode == "overhead" else arms
        if iterations == 1:  # where B's penalty could do nothing, and is refused
            chosen = {name: arm for name, arm in chosen.items() if not name.startswith("B")}
        texts = {"gsm8k": "gold answers", "instructions": "SmolLM2's texts"}[args.task]
        title = f"μ={iterations}, {scale:g}× {texts}" + (", gradient checkpointing" if checkpoint else "")
        yield (
            title,
            chosen,
            Batches(args, scale),
            iterations,
            checkpoint,
            not args.no_generation and args.mode != "overhead",
        )
