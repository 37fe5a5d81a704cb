"""Right: what has to be equal among our own arms, and what a step's record has to count, by hand."""

from pathlib import Path

import torch

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.controls import TRAINED
from trl_prorl.eval.gpucheck.parity import EVERY, LEAST, PACKED, REUSED, distances
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import Trained, train
from trl_prorl.eval.stepcost.batches import Batches


B = {"beta_old": 0.3}
FOUR = TRAINED | {"max_steps": 4}
# Forward calls of four steps, μ=2, a micro-batch a step: under the policy, the reference and the old policy.
CALLS = {
    "A": (EVERY, [1, 1, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0]),
    "A, packed": (EVERY | PACKED, [1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]),
    "B": (B, [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]),
    "B, packed": (B | PACKED, [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]),
}
PAIRS = {  # which runs end with the same weights
    "A reset at every boundary is B": (EVERY, B),
    "a reference computed again is the cached one": (EVERY, EVERY | {"ref_compute": "naive_epoch"}),
    "C with keep is A": (EVERY, EVERY | {"optimizer_reset": "keep"}),
    "C with soft(1) is A": (EVERY, EVERY | {"optimizer_reset": "soft", "optimizer_reset_alpha": 1.0}),
    "the first pass is a forward of its own": (B, B | REUSED),
}
# As a share of the weights' way in four updates in fp32. On a CPU equal arms are at most 1e-6 apart, A and C 0.5.
SAME = 1e-3


def equivalences(size: Size, folder: Path) -> Result:
    """Equal arms, the KL after a reset, forward calls and positions, in fp32."""
    result = Result()
    args = size.arguments(
        dtype=torch.float32, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24
    )
    batches = Batches(args, 1.0)
    runs: dict[str, Trained] = {}

    def run(keys: dict) -> Trained:
        name = repr(sorted(keys.items()))
        if name not in runs:
            runs[name] = train((ProRLTrainer, keys | FOUR), args, batches, 2)
        return runs[name]

    for name, (one, other) in PAIRS.items():
        found = distances(run(other), run(one))["weights"]
        result.check(name, found <= SAME, f"weights {found:.1e} of their way apart, allowed {SAME:.0e}")
    hard = distances(run(EVERY | {"optimizer_reset": "hard"}), run(EVERY))["weights"]
    result.check("C with hard is another run than A", hard > 10 * SAME, f"{hard:.1e} apart, at least {10 * SAME:.0e}")
    for name, (keys, *expected) in CALLS.items():
        rows = run(keys).rows
        found = [[row[f"{kind}_forward_calls"] for row in rows] for kind in ("policy", "ref", "old")]
        result.check(f"{name}: forward calls", found == expected, f"policy, ref, old {found}, by hand {expected}")
    for name, packed in (("A", False), ("A, packed", True)):
        found = [row["tokens_processed_policy"] for row in run(CALLS[name][0]).rows]
        expected = [positions(batches, step // 2, packed) for step in range(4)]
        result.check(f"{name}: positions", found == expected, f"{found}, by hand {expected}")
    kl = [row["kl_ref"] for row in run(EVERY).rows]
    zero = max(abs(kl[0]), abs(kl[2]))
    result.check("the KL is 0 after a reset", zero < LEAST[torch.float32] < min(kl[1], kl[3]), f"kl_ref {kl}")
    resets = [event["step_applied"] for event in run(EVERY).events if event["event"] == "reset"]
    result.check("a reset is applied at the next boundary", resets == [2], f"applied at steps {resets}, by hand [2]")
    return result


def positions(batches: Batches, number: int, packed: bool) -> int:
    """What a forward over a generation batch computes, padding included."""
    prompts, completions = batches.draw(number)
    if not packed:
        return len(prompts) * (max(map(len, prompts)) + max(map(len, completions)))
    different = {tuple(prompt) for prompt in prompts}
    # A prompt without its last token, which stands before every completion.
    return sum(len(prompt) - 1 for prompt in different) + sum(len(ids) + 1 for ids in completions)
