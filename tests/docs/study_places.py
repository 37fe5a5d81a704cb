"""
Where the numbers of `study/figures.py` stand on the pages. The tables of `study/pages/details.md` are not all here.

`{block/family/arm/name:format}` is a number, `{block/family/arm/name/other:format}` that of an arm less another.
FORMATS in test_study.py has the formats; 0 and 1 are points of 100 with so many digits.
"""

SORTING = "gamed/gamed_sorting"
REVERSING = "gamed2/gamed_reverse"
RIVALS = ("rivals/gamed_sorting", "rivals2/gamed_reverse")
TUNED = ("tuned_rivals/gamed_sorting", "tuned_rivals2/gamed_reverse")
HELD_BY_TARGET = (f"{RIVALS[0]}/control_target0.14", f"{RIVALS[1]}/control_target0.3")
FORGET = "forget2/forget"
CLAMP = "clamp/reverse_level8"
CLAMP2 = "clamp2/reverse_level8"
DOSE_LONG = "dose_long/gamed_reverse_2_2"
FIVE_REWARDS = (
    "{dose/gamed_reverse_0_0/control_target0.3/pass@1/plain:0} to "
    "{dose_sorting/sorting_ends_1_1/control_target0.14/pass@1/plain:0}"
)
ENDS = "dose_sorting/sorting_ends"
ENDS_REVERSING = "dose/gamed_reverse"
TWO_SHARES = "{dose_sorting/sorting_ends_2_2/plain/share:0} and {dose/gamed_reverse_2_2/plain/share:0}"
LONG_K = "long_k/reverse_level8"
MODES = "modes/reverse_digits"
PRETRAINED = "pretrained/smollm2"
SMOLLM2B = "smollm2b/smollm2"
MORE_SEEDS = "smollm2b_seeds/smollm2"
FIVE_SEEDS = f"{MORE_SEEDS}/control_target0.066"
RULES = ("right", "sense")
TASKS = ("reverse_digits", "sorting", "sums")
QWEN = {  # at most 512 tokens
    "starting model": "base",
    "starting model, default prompt": "base_default",
    "starting model, four examples": "base_4shot",
    "fixed reference": "control",
    "moving reference (A), one reset": "A",
    "A, Adam cleared at the reset (C hard)": "C_hard",
    "A, Adam times 0.1 at the reset (C soft)": "C_soft0.1",
    "no KL": "plain_again",
    "old policy (B)": "B",
}
QWEN_LESS = {
    "fixed reference − starting model": ("control", "base"),
    "moving reference (A) − starting model": ("A", "base"),
    "moving reference (A) − fixed reference": ("A", "control"),
    "C hard − starting model": ("C_hard", "base"),
    "C hard − fixed reference": ("C_hard", "control"),
    "C hard − moving reference (A)": ("C_hard", "A"),
    "C soft − starting model": ("C_soft0.1", "base"),
    "C soft − fixed reference": ("C_soft0.1", "control"),
    "C soft − moving reference (A)": ("C_soft0.1", "A"),
    "C soft − C hard": ("C_soft0.1", "C_hard"),
    "no KL − starting model": ("plain_again", "base"),
    "no KL − fixed reference": ("plain_again", "control"),
    "moving reference (A) − no KL": ("A", "plain_again"),
    "C hard − no KL": ("C_hard", "plain_again"),
    "C soft − no KL": ("C_soft0.1", "plain_again"),
    "old policy (B) − starting model": ("B", "base"),
    "old policy (B) − fixed reference": ("B", "control"),
    "old policy (B) − no KL": ("B", "plain_again"),
    "old policy (B) − moving reference (A)": ("B", "A"),
}
QWEN_PROMPTS = {
    "starting model: default − recipe's prompt": ("base_default", "base"),
    "starting model: four examples − recipe's prompt": ("base_4shot", "base"),
    "starting model: four examples − default prompt": ("base_4shot", "base_default"),
    "moving reference (A) − starting model, default prompt": ("A", "base_default"),
    "moving reference (A) − starting model, four examples": ("A", "base_4shot"),
    "fixed reference − starting model, default prompt": ("control", "base_default"),
    "fixed reference − starting model, four examples": ("control", "base_4shot"),
    "C hard − starting model, default prompt": ("C_hard", "base_default"),
    "C hard − starting model, four examples": ("C_hard", "base_4shot"),
    "C soft − starting model, default prompt": ("C_soft0.1", "base_default"),
    "C soft − starting model, four examples": ("C_soft0.1", "base_4shot"),
    "no KL − starting model, default prompt": ("plain_again", "base_default"),
    "no KL − starting model, four examples": ("plain_again", "base_4shot"),
    "old policy (B) − starting model, default prompt": ("B", "base_default"),
    "old policy (B) − starting model, four examples": ("B", "base_4shot"),
}
QWEN_FIRST = {  # at most 200 tokens
    "starting model": "base of plain",
    "no KL": "plain",
    "starting model in bf16": "base of plain_seed2",
    "no KL, seed 2, bf16": "plain_seed2",
    "fixed reference, `kl_target`, seed 2, bf16": "control_target0.011_seed2",
    "cut at 200: starting model": "base",
    "cut at 200: no KL, again": "plain_again",
    "cut at 200: fixed reference": "control",
    "cut at 200: moving reference (A)": "A",
    "cut at 200: C hard": "C_hard",
    "cut at 200: C soft": "C_soft0.1",
    "cut at 200: old policy (B)": "B",
}
QWEN_GAINS = {  # at most 200 tokens: a run, minus what
    "no KL − starting model": ("plain", "base of plain"),
    "no KL, seed 2 − starting model": ("plain_seed2", "base of plain_seed2"),
    "fixed reference, `kl_target` − starting model": (
        "control_target0.011_seed2",
        "base of control_target0.011_seed2",
    ),
    "no KL, again − starting model": ("plain_again", "base"),
    "fixed reference − starting model": ("control", "base"),
    "moving reference (A) − starting model": ("A", "base"),
    "C hard − starting model": ("C_hard", "base"),
    "C soft − starting model": ("C_soft0.1", "base"),
    "old policy (B) − starting model": ("B", "base"),
    "moving reference (A) − fixed reference": ("A", "control"),
    "C hard − fixed reference": ("C_hard", "control"),
    "C hard − moving reference (A)": ("C_hard", "A"),
    "C soft − moving reference (A)": ("C_soft0.1", "A"),
    "C soft − C hard": ("C_soft0.1", "C_hard"),
    "moving reference (A) − no KL, again": ("A", "plain_again"),
    "old policy (B) − no KL, again": ("B", "plain_again"),
    "no KL, seed 2 − no KL, again": ("plain_seed2", "plain_again"),
    "no KL, seed 2 − starting model, four examples": ("plain_seed2", "base_4shot"),
}
BOTH_WAYS = ("sampled", "greedy")


def ways(*models: str) -> tuple[str, ...]:
    """Return how replies of these models were decoded: with four examples greedily alone."""
    return ("greedy",) if "base_4shot" in models else BOTH_WAYS


def pair(key: str) -> list[str]:
    """Return the cells of a score, sampled and greedy."""
    return [f"{{{key}/{score}:0}}" for score in ("pass@1", "greedy")]


def advice(key: str, places: tuple = ("",)) -> list[str]:
    """Return the cells of the table of advice: differences at these places, sampled and greedy; starting models."""
    cells = [
        ", ".join(f"{{{key.format(place).replace('SCORE', score)}:+1}}" for place in places)
        for score in ("pass@1", "greedy")
    ]
    return [*cells, "{ARM/bases:n0}", ""]


def change(key: str) -> str:
    """A difference with its interval and p."""
    return f"{{{key}:interval}}, {{{key}:p}}"


def strong_kl(place: str) -> list[str]:
    """Return the cells of a row under a KL that is too strong; the runs are of one of two blocks."""
    differences = [change(f"{place}/ARM/pass@1/{less}") for less in ("LESS", "plain")]
    return [*pair(f"{place}/ARM"), f"{{{place}/ARM/drift:n2}}", *differences, f"{{{place}/ARM/given back:0}}"]


def by_both_rules(place: str, seed: int) -> str:
    """SmolLM2's score by the registered rule, and by the stricter one."""
    return f"{{{place}/ARM/right, sampled, seed {seed}:n3}} ({{{place}/ARM/sense, sampled, seed {seed}:n3}})"


def qwen_differences(pairs: dict[str, tuple[str, str]], limit: int) -> list:
    """Return the groups of the table of the Qwen's differences at a limit of tokens."""
    columns = [
        "{qwen/ARM/pass@1/LESS:interval}",
        "{qwen/ARM/difference by form/LESS:+1}",
        "{qwen/ARM/difference among whole/LESS:+1}",
    ]
    rows = {
        f"{label}, {way}": (f"{way}, {limit}/{model}", other)
        for label, (model, other) in pairs.items()
        for way in ways(model, other)
    }
    return [(columns, rows)]


# The cells of a table's rows, for each table by how its first line begins. A row is its label, the arm for ARM and
# the one for LESS. A difference of an arm from itself is an empty cell.
GAMED = {
    "starting model": "base",
    "no KL": "plain",
    "fixed reference, β = 0.3": "control",
    "moving reference (A), reset every 100 steps": "A_K100",
    "old policy (B)": "B",
}
HELD = {
    "starting model": "base",
    "no KL": "plain",
    "fixed reference, `kl_target`": "control",
    "no KL, early stopping": "stopped",
    "no KL, 10 % of the learning rate": "tenth",
    "no KL, LoRA of rank 4": "rank 4",
    "rejection sampling": "rejection",
    "best of 8 of the starting model, by reward": "best of 8",
}
FRONT = {
    "starting model": "base",
    "no KL": "plain",
    "no KL, best of three early-stopping rules": "stopped",
    "rejection sampling (fine-tuning on the different rewarded samples)": "rejection",
    "best of 8 samples of the starting model, by reward": "best of 8",
    "**fixed reference with a `kl_target`**": "control",
}
RESETS = "{side/reverse_digits/ARM/resets, most:n0}"
FAST = {"no KL": "plain", "B": "B", "A": "A", "C hard": "C_hard", "fixed reference": "control"}
COST = "step_cost/ARM"
TABLES = {
    "../docs/performance.md": {
        "| layers of the model": [
            (
                [
                    ", ".join(f"{{{COST}, 1 update/{arm}/{part}:n1}}" for arm in ("TRL β=0", "plain packed", "floor"))
                    for part in ("generation", "update")
                ],
                {
                    "Qwen2: full attention": "Qwen2",
                    "Qwen3.5: Gated DeltaNet and full attention, 3 : 1": "Qwen3.5",
                    "Gemma 3: sliding windows and full attention, 5 : 1": "Gemma 3",
                },
            ),
        ],
        "| layers, per batch": [
            (
                [
                    f"{{{COST}/plain packed/speedup/TRL β=0:ratio}}",
                    f"{{{COST}/floor/speedup/TRL β=0:n2}}",
                    f"{{{COST}/plain packed/reached/floor:n2}}",
                    f"{{{COST}/A packed/speedup/TRL β>0:ratio}}",
                ],
                {
                    f"{kind}, {count}": f"{kind}, {count}"
                    for kind in ("Qwen2", "Qwen3.5", "Gemma 3")
                    for count in ("1 update", "2 updates")
                },
            ),
        ],
    },
    "../README.md": {
        "| | sorting: sampled": [
            ([f"{{{place}/ARM/{score}:0}}" for place in RIVALS for score in ("pass@1", "greedy")], FRONT),
            (
                [
                    f"{{rejection_all/{family}/ARM/{score}:0}}"
                    for family in ("gamed_sorting", "gamed_reverse")
                    for score in ("pass@1", "greedy")
                ],
                {"fine-tuning on every rewarded sample (exploratory, other seeds)": "rejection_all"}
                | {"fixed reference with a `kl_target`, those seeds": "control"},
            ),
        ],
        "| | sampled | greedy |": [
            (
                [f"{{qwen/{way}, 512/ARM/corrected:1}}" for way in BOTH_WAYS],
                {
                    "starting model": "base",
                    "starting model, another prompt (exploratory)": "base_default",
                    "fixed reference, `beta: 0.3`": "control",
                    "the same, with one reset halfway": "A",
                    "… and Adam's state cleared at it (C hard)": "C_hard",
                    "… and Adam's state times 0.1 (C soft)": "C_soft0.1",
                    "no KL (exploratory)": "plain_again",
                    "B, `beta_old: 0.02`": "B",
                },
            )
        ],
    },
    "README.md": {
        "| your reward, or your case": [
            (advice("core/{}/A/SCORE/plain", TASKS), {"A − no KL": "core/sums/A"}),
            (
                advice("{}/control/SCORE/plain", (SORTING, REVERSING)),
                {"fixed reference − no KL, two rewards": f"{REVERSING}/control"},
            ),
            (
                advice("{}/LESS/SCORE, the control's less it", RIVALS),
                {
                    "fixed reference − early stopping": (f"{RIVALS[0]}/control_target0.14", "stopped"),
                    "fixed reference − rejection sampling": (f"{RIVALS[0]}/control_target0.14", "rejection"),
                    "fixed reference − best of 8": (f"{RIVALS[0]}/control_target0.14", "best of 8"),
                },
            ),
            (
                advice("{}/LESS/SCORE, the control's less it", TUNED),
                {
                    "fixed reference − early stopping, 60 checkpoints": (f"{TUNED[0]}/control_target0.14", "stopped"),
                },
            ),
            (
                advice(
                    "{}/LESS/SCORE, the control's less it",
                    ("rejection_all/gamed_sorting", "rejection_all/gamed_reverse"),
                ),
                {
                    "fixed reference − fine-tuning on every rewarded sample": (
                        "rejection_all/gamed_sorting/rejection_all",
                        "every rewarded",
                    ),
                },
            ),
            (
                advice("{}/SCORE/base", HELD_BY_TARGET),
                {"fixed reference, `kl_target` − starting model": HELD_BY_TARGET[0]},
            ),
            (
                advice(
                    "{}/SCORE/plain",
                    (f"{ENDS}_2_2/control_target0.14", f"{ENDS_REVERSING}_2_2/control_target0.3"),
                ),
                {f"the same, shares of {TWO_SHARES} %": "dose/gamed_reverse_2_2/control_target0.3"},
            ),
            (
                [
                    *(
                        f"{{{ENDS_REVERSING}_0_0/control_target0.3/{score}/plain:+1}} to "
                        f"{{{ENDS}_1_1/control_target0.14/{score}/plain:+1}}"
                        for score in ("pass@1", "greedy")
                    ),
                    "{ARM/bases:n0}",
                    "",
                ],
                {"the same, five other rewards of these tasks": f"{ENDS}_1_1/control_target0.14"},
            ),
            (
                advice("ARM/SCORE/LESS"),
                {
                    "the same, 1,800 steps, other seeds": (f"{DOSE_LONG}/control_target0.3", "plain"),
                    "A with five resets, its own β of 1 − fixed reference": (f"{SORTING}/A_K100_own", "control"),
                    "A with one reset in 600 steps − fixed reference": (f"{SORTING}/A_K300", "control"),
                    f"A with {{{SORTING}/A/resets, most:n0}} resets − fixed reference": (f"{SORTING}/A", "control"),
                    "fixed reference at β = 10 − no KL": (f"{CLAMP}/control", "plain"),
                    "A, reset every 200 steps − fixed reference": (f"{CLAMP}/A_K200", "control"),
                    "the same, three starting models and new seeds": (f"{CLAMP2}/A_K200_beta10", "control_beta10"),
                    "A, reset every 40 steps − fixed reference": (f"{CLAMP2}/A_beta10", "control_beta10"),
                    "A, reset every 500 steps − fixed reference": (f"{LONG_K}/A_K500_beta10", "control_beta10"),
                    "A: rate falls to 0 − constant rate": (f"{MODES}/A_linear_lr10", "A_lr10"),
                    "A: Adam's step count cleared − kept": (f"{MODES}/C_step_lr10", "A_lr10"),
                },
            ),
            (
                advice(
                    "{}/SCORE/base",
                    ("target/gamed_sorting/control_target0.07", "target2/gamed_reverse/control_target0.15"),
                ),
                {"fixed reference with that target − starting model": "target/gamed_sorting/control_target0.07"},
            ),
            *(
                (
                    advice(
                        "{}",
                        (
                            f"target/gamed_sorting/control_target{sorting}/SCORE/control_target0.14",
                            f"target2/gamed_reverse/control_target{reversing}/SCORE/control_target0.3",
                        ),
                    ),
                    {label: "target/gamed_sorting/control_target0.14"},
                )
                for label, sorting, reversing in (
                    ("a quarter of the preflight's target − that target", 0.035, 0.075),
                    ("four times the preflight's target − that target", 0.56, 1.2),
                )
            ),
            (advice("{}/B/SCORE/plain", (SORTING, REVERSING)), {"B − no KL": f"{REVERSING}/B"}),
            (
                advice("reuse{0}/reverse_digits/plain_noclip_mu{0}/SCORE/plain_mu{0}", (8, 32)),
                {"no KL: without the clip − with it, 8 and 32 uses": "reuse32/reverse_digits/plain_mu32"},
            ),
            (
                advice("ARM/SCORE"),  # minus 0, its score at the high rate
                {"no KL: 10 % of the rate − that rate": "core/reverse_digits/plain"},
            ),
            (advice("core/{}/C_hard/SCORE/A", TASKS), {"A: Adam cleared − kept": "core/sums/C_hard"}),
            (
                [f"{{{FORGET}/replayed_kl/kept/plain:+1}}", "", "{ARM/bases:n0}", ""],
                {"replayed KL − no KL, on those skills": f"{FORGET}/replayed_kl"},
            ),
        ],
        "| task | variant | sampled | greedy | minus no KL": [
            (
                [
                    *pair(f"{place}/ARM"),
                    change(f"{place}/ARM/pass@1/plain"),
                    f"{{{place}/ARM/greedy/plain:interval}}",
                ],
                {f"{task} | {label}": arm for label, arm in GAMED.items()}
                | {f"{task} | fixed reference, `kl_target` (exploratory)": f"control_target{target}"},
            )
            for task, place, target in (("sorting", SORTING, 0.14), ("reversing", REVERSING, 0.3))
        ],
        "| variant | reversing: sampled | greedy | KL": [
            (
                [
                    *pair(f"{FORGET}/ARM"),
                    f"{{{FORGET}/ARM/KL on the others:n3}}",
                    f"{{{FORGET}/ARM/kept:0}}",
                    change(f"{FORGET}/ARM/kept/plain"),
                ],
                {"starting model": "base", "no KL": "plain", "fixed reference, β = 0.3": "control_beta0.3"}
                | {"fixed reference, β = 1": "control_beta1", "replayed KL": "replayed_kl"},
            )
        ],
        "| task | minus no KL": [
            (
                [f"{{core/LESS/ARM/{score}/plain:interval}}" for score in ("pass@1", "greedy")],
                {
                    f"{label} | {name}": (arm, task)
                    for label, task in zip(("reversing", "sorting", "sums"), TASKS, strict=True)
                    for name, arm in (("moving reference (A)", "A"), ("old policy (B)", "B"))
                },
            ),
        ],
    },
    "pages/kl_target.md": {
        "| task | share": [
            (
                [
                    *pair(f"{block}/ARM/{held}"),
                    *pair(f"{block}/ARM/plain"),
                    *(f"{{{block}/ARM/{held}/{score}/plain:interval}}" for score in ("pass@1", "greedy")),
                ],
                {f"{task} | {{{block}/{family}/plain/share:0}}": family for family in families},
            )
            for task, block, held, families in (
                (
                    "reversing",
                    "dose",
                    "control_target0.3",
                    ("gamed_reverse_0_0", "gamed_reverse_1_0", "gamed_reverse", "gamed_reverse_2_2"),
                ),
                (
                    "sorting",
                    "dose_sorting",
                    "control_target0.14",
                    ("sorting_ends_0_0", "sorting_ends_1_0", "sorting_ends_1_1", "sorting_ends_2_2"),
                ),
            )
        ],
        "| 1,800 steps, share": [
            (
                [
                    *pair(f"{DOSE_LONG}/ARM"),
                    change(f"{DOSE_LONG}/ARM/pass@1/plain"),
                    f"{{{DOSE_LONG}/ARM/greedy/plain:interval}}",
                ],
                {
                    "no KL": "plain",
                    "fixed reference, `kl_target` 0.3": "control_target0.3",
                    "fixed reference, `kl_target` 0.6": "control_target0.6",
                },
            ),
        ],
        "| task | `kl_target`": [
            (
                [
                    *pair(f"{place}/control_targetARM"),
                    f"{{{place}/control_targetARM/drift:n2}}",
                    f"{{{place}/control_targetARM/beta at the end:n2}}",
                    change(f"{place}/control_targetARM/pass@1/LESS"),
                    f"{{{place}/control_targetARM/greedy/LESS:interval}}",
                ],
                {
                    f"{task} | {target} ({multiple})": (str(target), f"control_target{targets[2]}")
                    for target, multiple in zip(targets, ("¼", "½", "1", "2", "4"), strict=True)
                },
            )
            for task, place, targets in (
                ("sorting", "target/gamed_sorting", (0.035, 0.07, 0.14, 0.28, 0.56)),
                ("reversing", "target2/gamed_reverse", (0.075, 0.15, 0.3, 0.6, 1.2)),
            )
        ],
    },
    "pages/alternatives.md": {
        "| task | alternative | sampled | greedy | fixed reference minus it": [
            (
                [
                    *pair(f"{place}/ARM"),
                    change(f"{place}/ARM/pass@1, the control's less it"),
                    f"{{{place}/ARM/greedy, the control's less it:interval}}",
                ],
                {f"{task} | {label}": arm for label, arm in HELD.items()},
            )
            for task, place in zip(("sorting", "reversing"), RIVALS, strict=True)
        ],
        "| task | fixed reference's checkpoint": [
            (
                [
                    *pair("rejection_all/ARM/LESS"),
                    *pair("rejection_all/ARM/rejection_all"),
                    "{rejection_all/ARM/every rewarded/pass@1, the LESS's less it:interval}",
                    "{rejection_all/ARM/every rewarded/greedy, the LESS's less it:interval}",
                ],
                {
                    f"{task} | {label}": (family, control)
                    for task, family in (("sorting", "gamed_sorting"), ("reversing", "gamed_reverse"))
                    for label, control in (("last step", "control"), ("best of six by validation", "control stopped"))
                },
            )
        ],
        "| task | tuned alternative | sampled": [
            (
                [
                    *pair(f"{place}/ARM"),
                    f"{{{place}/LESS/best of 8:0}}",
                    change(f"{place}/ARM/pass@1, the control's less it"),
                    f"{{{place}/ARM/greedy, the control's less it:interval}}",
                ],
                {
                    f"{task} | starting model": ("base", "base"),
                    f"{task} | fixed reference, `kl_target`": (f"control_target{target}", f"control_target{target}"),
                    f"{task} | the same, early stopping (exploratory)": ("control stopped", ""),
                    f"{task} | no KL, early stopping": ("stopped", ""),
                    f"{task} | no KL, 10 steps (exploratory)": ("ten steps", ""),
                    f"{task} | no KL, learning rate falls to 0": ("linear", "plain_linear"),
                    f"{task} | rejection sampling, three rounds": ("three rounds", "rejection_rounds"),
                },
            )
            for task, place, target in (
                ("sorting", "tuned_rivals/gamed_sorting", 0.14),
                ("reversing", "tuned_rivals2/gamed_reverse", 0.3),
            )
        ]
        + [
            (
                [*pair(f"tuned_stops/{family}/ARM"), f"{{{place}/{family}/ARM/best of 8:0}}", "", ""],
                {f"{task} | no KL": "plain"},
            )
            for task, place, family in (
                ("sorting", "tuned_rivals", "gamed_sorting"),
                ("reversing", "tuned_rivals2", "gamed_reverse"),
            )
        ],
    },
    "pages/strong_kl.md": {
        "| variant | sampled | greedy | KL to the starting model": [
            (
                [
                    *pair(f"{CLAMP}/ARM"),
                    f"{{{CLAMP}/ARM/drift:n2}}",
                    f"{{{CLAMP}/ARM/pass@1/plain:interval}}",
                    change(f"{CLAMP}/ARM/pass@1/control"),
                ],
                {"starting model": "base", "no KL": "plain", "fixed reference": "control"}
                | {
                    "moving reference (A), reset every 200 steps": "A_K200",
                    "A, reset every 200 steps, Adam cleared (C hard)": "C_hard_K200",
                },
            )
        ],
        "| β | variant": [
            (
                strong_kl(CLAMP2),
                {
                    f"{beta} | {label}": (f"{arm}{beta}", f"control_beta{beta}")
                    for beta in ("1", "10")
                    for label, arm in (
                        ("fixed reference", "control_beta"),
                        ("A, reset every 200 steps", "A_K200_beta"),
                        ("A, reset every 40 steps", "A_beta"),
                        ("old policy (B)", "B_beta_old"),
                    )
                }
                | {" | no KL": "plain"},
            ),
            (
                strong_kl(LONG_K),
                {
                    f"{beta} | A, reset every {steps} steps": (f"A_K{k}_beta{beta}", f"control_beta{beta}")
                    for beta in ("1", "10")
                    for steps, k in (("1,000", 1000), ("500", 500))
                },
            ),
        ],
    },
    "pages/smollm2.md": {
        "| variant | first score": [
            (
                [
                    f"{{{SMOLLM2B}/ARM/{rule}, {decoding}:1}}"
                    for rule in ("right", "sense")
                    for decoding in ("sampled", "greedy")
                ],
                {"starting model": "base", "no KL": "plain", "no KL, early stopping": "stopped"}
                | {"fixed reference, `kl_target`": "control_target0.066", "fixed reference, β = 0.03": "control"}
                | {"moving reference (A), β = 0.03, reset every 40 steps": "A"},
            )
        ],
        "| sampled difference, points | 95 % over": [
            (
                [f"{{{SMOLLM2B}/ARM/{rule}, over {unit}/LESS:interval}}" for rule in RULES],
                {
                    f"{label} | {brackets}": arms
                    for label, arms in {
                        "`kl_target` − no KL": ("control_target0.066", "plain"),
                        "`kl_target` − early stopping": ("control_target0.066", "stopped"),
                        "fixed reference, β = 0.03 − no KL": ("control", "plain"),
                        "A − fixed reference, both β = 0.03": ("A", "control"),
                    }.items()
                },
            )
            for unit, brackets in {"prompts": "64 prompts", "seeds": "3 seeds"}.items()
        ]
        + [
            (
                [f"{{smollm2b_seeds/smollm2/ARM/{rule}, five seeds/LESS:interval}}" for rule in RULES],
                {
                    "`kl_target` − no KL | 5 seeds": ("control_target0.066", "plain"),
                    "`kl_target` − early stopping | 5 seeds": ("control_target0.066", "stopped"),
                    "fixed reference, β = 0.03 − no KL | 5 seeds": ("control", "plain"),
                    "A − fixed reference, both β = 0.03 | 5 seeds": ("A", "control"),
                },
            )
        ],
        "| variant | reward | correct: pass@1": [
            (
                [
                    f"{{{PRETRAINED}/ARM/LESS:n2}}",
                    ", ".join(f"{{{PRETRAINED}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy")),
                    *(
                        f"{{{PRETRAINED}/ARM/{measure}}}"
                        for measure in (
                            "kl_to_base on instructions:n2",
                            "kl_to_base on sums@1:n2",
                            "mean_tokens on instructions:n1",
                            "distinct_2 on instructions:n2",
                            "compression_ratio on instructions:n2",
                            "text_perplexity on instructions:n1",
                        )
                    ),
                ],
                {
                    "starting model": ("base", "reward on instructions"),
                    "no KL": ("plain", "proxy"),
                    "fixed reference, β = 0.3": ("control", "proxy"),
                    "A, reset every 40 steps, β = 0.3": ("A", "proxy"),
                    "B, β_old = 1": ("B", "proxy"),
                },
            )
        ],
        "| pass@1 (without bare replies) | seed 2": [
            (
                [by_both_rules(PRETRAINED, seed) for seed in (2, 3, 4)],
                {"no KL": "plain", "fixed reference": "control", "A": "A", "B": "B"},
            )
        ],
        "| variant | correct texts": [
            (
                [
                    f"{{{PRETRAINED}/ARM/right texts:n0}}",
                    f"{{{PRETRAINED}/ARM/bare texts:n0}}",
                    f"{{{PRETRAINED}/ARM/sense, sampled:n3}}",
                ],
                {"starting model": "base", "no KL": "plain", "fixed reference": "control", "A": "A", "B": "B"},
            )
        ],
        "| difference in pass@1, sampled |": [
            (
                [f"{{{PRETRAINED}/ARM/{rule}, over prompts/LESS:signed}}" for rule in ("right", "sense")],
                {
                    "fixed reference − no KL": ("control", "plain"),
                    "A − fixed reference": ("A", "control"),
                    "A − no KL": ("A", "plain"),
                    "A − B": ("A", "B"),
                    "A − starting model": ("A", "base"),
                    "fixed reference − starting model": ("control", "base"),
                    "no KL − starting model": ("plain", "base"),
                    "B − starting model": ("B", "base"),
                },
            )
        ],
        "| variant, sampled | 14 prompts": [
            (
                [
                    f"{{{SMOLLM2B}/ARM/{rule}, {prompts}:0}}"
                    for prompts in ("last words", "the rest")
                    for rule in RULES
                ],
                {"starting model": "base", "no KL": "plain", "fixed reference, `kl_target`": "control_target0.066"}
                | {"fixed reference, β = 0.03": "control", "moving reference (A), β = 0.03": "A"},
            )
        ],
        "| pass@1 (by the stricter score) | seed 5": [
            (
                [by_both_rules(SMOLLM2B, seed) for seed in (5, 6, 7)],
                {"no KL": "plain", "no KL, early stopping": "stopped"}
                | {"fixed reference, `kl_target`": "control_target0.066", "fixed reference, β = 0.03": "control"}
                | {"moving reference (A), β = 0.03": "A"},
            )
        ],
        "| pass@1 (by the stricter score) | seed 8, 64": [
            (
                [by_both_rules(place, seed) for place in (MORE_SEEDS, f"{MORE_SEEDS}_256") for seed in (8, 9)],
                {"no KL": "plain", "no KL, early stopping": "stopped"}
                | {"fixed reference, `kl_target`": "control_target0.066", "fixed reference, β = 0.03": "control"}
                | {"moving reference (A), β = 0.03": "A"},
            ),
            (
                [by_both_rules(place, 0) for place in (MORE_SEEDS, f"{MORE_SEEDS}_256") for _ in (8, 9)],
                {"starting model": "base"},
            ),
        ],
    },
    "pages/qwen.md": {
        "| a step, seconds": [
            (
                [f"{{qwen/a step/ARM/seconds of {part}:n0}}" for part in ("generation", "scoring", "update")],
                {"TRL, fixed reference": "TRL β>0", "moving reference (A), `fast`": "A packed"},
            )
        ],
        "| model, at most 512 tokens": [
            (
                [
                    *(f"{{qwen/{way}, 512/ARM/pass@1:of 100}}" for way in BOTH_WAYS),
                    *(f"{{qwen/{way}, 512/ARM/corrected:1}}" for way in BOTH_WAYS),
                    *(f"{{qwen/{way}, 200/ARM/pass@1:0}}" for way in BOTH_WAYS),
                    *(f"{{qwen/{way}, 512/ARM/tokens:n0}}" for way in BOTH_WAYS),
                ],
                QWEN,
            )
        ],
        "| replies of at most 512 tokens": [
            (
                [
                    *(f"{{qwen/LESS, 512/ARM/{share}:1}}" for share in ("truncated", "bare", "program")),
                    "{qwen/LESS, 512/ARM/correct among whole:1}",
                ],
                {f"{label}, {way}": (model, way) for label, model in QWEN.items() for way in ways(model)},
            )
        ],
        "| difference, at most 512 tokens": qwen_differences(QWEN_LESS, 512),
        "| difference, by the corrected verifier": [
            ([f"{{qwen/{way}, 512/ARM/corrected/LESS:interval}}" for way in BOTH_WAYS], QWEN_PROMPTS)
        ],
    },
    "pages/qwen_200.md": {
        "| difference, at most 200 tokens": qwen_differences(QWEN_GAINS, 200),
        "| model, at most 200 tokens": [
            (
                [
                    "{qwen/LESS, 200/ARM/pass@1:of 100}",
                    "{qwen/LESS, 200/ARM/pass@2:0}",
                    "{qwen/LESS, 200/ARM/truncated:1}",
                    "{qwen/LESS, 200/ARM/bare:1}",
                    "{qwen/LESS, 200/ARM/correct among whole:1}",
                    "{qwen/LESS, 200/ARM/tokens:n0}",
                ],
                {f"{label}, {way}": (model, way) for label, model in QWEN_FIRST.items() for way in BOTH_WAYS},
            )
        ],
    },
    "pages/details.md": {
        "| difference | pass@1": [
            (
                [
                    "{core/LESS/ARM/pass@1/plain:signed}",
                    "{core/LESS/ARM/pass@1, over bases/plain:signed}",
                    "{core/LESS/ARM/pass@1, equivalent/plain:n3}",
                    *(f"{{core/LESS/ARM/{score}/plain:signed}}" for score in ("greedy", "pass@8")),
                ],
                {
                    f"{arm} − no KL, {label}": (arm, task)
                    for arm in ("A", "B")
                    for label, task in zip(("reversing", "sorting", "sums"), TASKS, strict=True)
                },
            ),
            (
                [
                    "{core/mean/ARM/pass@1/plain:signed}",
                    "{core/mean/ARM/pass@1, over bases/plain:signed}",
                    "{core/mean/ARM/pass@1, equivalent/plain:n3}",
                    *(f"{{core/mean/ARM/{score}/plain:+3}}" for score in ("greedy", "pass@8")),
                ],
                {"A − no KL, mean (exploratory)": "A", "B − no KL, mean (exploratory)": "B"},
            ),
        ],
        "| variant | resets | pass@1 | minus no KL": [
            (
                [
                    "0",
                    "{side/reverse_digits/plain/pass@1:n3}",
                    "",
                    "",
                    "{side/reverse_digits/plain/pass@8:n3}",
                    "{side/reverse_digits/plain/drift:n2}",
                ],
                {"no KL": "plain"},
            ),
            (
                [
                    "LESS",
                    "{side/reverse_digits/ARM/pass@1:n3}",
                    "{side/reverse_digits/ARM/pass@1/plain:signed}",
                    "{side/reverse_digits/ARM/pass@1/A:signed}",
                    "{side/reverse_digits/ARM/pass@8:n3}",
                    "{side/reverse_digits/ARM/drift:n2}",
                ],
                {
                    "A, reset every 40 steps": ("A", RESETS),
                    "A, every 20": ("A_K20", RESETS),
                    "A, every 80": ("A_K80", RESETS),
                    "A, reset when the KL exceeds 0.015": ("A_spike", "11, 12, 12"),
                    "the same with k2 (two parts of ProRL v2)": ("C_keep_spike", "11, 12, 12"),
                    "A, reset when validation stalls": ("A_stall", "1, 0, 0"),
                    "C hard, when validation stalls (ProRL)": ("C_hard_stall", "1, 0, 0"),
                    "A, reference a moving average": ("A_ema", RESETS),
                    "A, adaptive β": ("A_adaptive", RESETS),
                    "A, β = 0.3": ("A_beta0.3", RESETS),
                    "A, β = 3": ("A_beta3", RESETS),
                    "A, and a KL to the starting model": ("A_base_anchor", RESETS),
                    "C soft, α = 0.3": ("C_soft0.3", RESETS),
                    "fixed reference, optimizer cleared": ("optimizer_only", RESETS),
                    "Elastic Reset, without its KL": ("A_elastic", RESETS),
                    "B": ("B", RESETS),
                    "B without the clip": ("B_noclip", RESETS),
                    "B, β_old = 0.3": ("B_beta_old0.3", RESETS),
                    "B, β_old = 3": ("B_beta_old3", RESETS),
                    "B, and a KL to the starting model": ("B_base_anchor", RESETS),
                },
            ),
        ],
        "| variant | pass@1 | minus the starting model | collapsed | drift": [
            (
                [
                    "{stress/reverse_digits/ARM_lr10/pass@1:whole}",
                    "{stress/reverse_digits/ARM_lr10/pass@1/base:signed}",
                    "{stress/reverse_digits/ARM_lr10/collapsed:n0} of {stress/reverse_digits/ARM_lr10/runs:n0}",
                    "{stress/reverse_digits/ARM_lr10/drift:n1}",
                    "{stress/reverse_digits/ARM_lr10/pass@1/plain_lr10:signed}",
                ],
                FAST,
            )
        ],
        "| variant | pass@1 | minus the starting model | collapsed | reward": [
            (
                [
                    "{mild/reverse_digits/ARM_lr7/pass@1:whole}",
                    "{mild/reverse_digits/ARM_lr7/pass@1/base:signed}",
                    "{mild/reverse_digits/ARM_lr7/collapsed:n0} of {mild/reverse_digits/ARM_lr7/runs:n0}",
                    "{mild/reverse_digits/ARM_lr7/end by best, least:0} to "
                    "{mild/reverse_digits/ARM_lr7/end by best, most:0} %",
                    "{mild/reverse_digits/ARM_lr7/drift:n1}",
                    "{mild/reverse_digits/ARM_lr7/pass@1/plain_lr7:signed}",
                ],
                FAST,
            )
        ],
        "| variant | reversing | sorting | sums | forwards": [
            (
                [
                    *(
                        ", ".join(f"{{core/{task}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy"))
                        for task in TASKS
                    ),
                    "{core/sums/ARM/ref_forward_calls:n0}",
                ],
                {"starting model": "base", **FAST}
                | {"C soft, α = 0.1": "C_soft0.1", "C asym": "C_asym", "C step": "C_step"},
            )
        ],
        "| variant | sorting: pass@1, pass@8, greedy | drift": [
            (
                [
                    cell
                    for place in (SORTING, REVERSING)
                    for cell in (
                        ", ".join(f"{{{place}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy")),
                        f"{{{place}/ARM/drift:n2}}",
                    )
                ],
                {
                    "starting model": "base",
                    "no KL": "plain",
                    "fixed reference": "control",
                    "A, reset every 100 steps": "A_K100",
                    "A, every 40": "A",
                    "A, every 300": "A_K300",
                    "A, every 100, β = 1": "A_K100_own",
                    "C hard, every 100": "C_hard_K100",
                    "no KL, a third of the learning rate": "plain_lr_third",
                    "B": "B",
                },
            ),
            (
                [
                    cell
                    for arm in (f"{SORTING}/control_target0.14", f"{REVERSING}/control_target0.3")
                    for cell in (
                        ", ".join(f"{{{arm}/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy")),
                        f"{{{arm}/drift:n2}}",
                    )
                ],
                {"fixed reference, `kl_target` (exploratory)": ""},
            ),
        ],
        "| difference in accuracy |": [
            (
                [
                    f"{{{place}/ARM/pass@1/LESS:signed}}, {{{place}/ARM/pass@1/LESS:p}}"
                    for place in (SORTING, REVERSING)
                ],
                {
                    "fixed reference − no KL": ("control", "plain"),
                    "A − no KL": ("A_K100", "plain"),
                    "B − no KL": ("B", "plain"),
                    "A − fixed reference": ("A_K100", "control"),
                },
            )
        ],
        "| variant | clip | 2 uses": [
            (
                [
                    *(f"{{reuse{uses}/reverse_digits/ARM_LESSmu{uses}/pass@1:n3}}" for uses in (2, 8, 32)),
                    "{reuse32/reverse_digits/ARM_LESSmu32/greedy:n3}",
                ],
                {
                    f"{label} | {clip}": (arm, less)
                    for label, arm in (
                        ("no KL", "plain"),
                        ("fixed reference, β = 0.3", "control_beta0.3"),
                        ("B, β_old = 1", "B_beta_old1"),
                        ("B, β_old = 0.3", "B_beta_old0.3"),
                    )
                    for clip, less in (("yes", ""), ("no", "noclip_"))
                },
            )
        ],
        "| minus no KL with the clip |": [
            (
                [
                    f"{{reuse{uses}/reverse_digits/ARM_mu{uses}/pass@1/plain_mu{uses}:signed}}, "
                    f"{{reuse{uses}/reverse_digits/ARM_mu{uses}/pass@1/plain_mu{uses}:p}}"
                    for uses in (8, 32)
                ],
                {
                    "no KL without it": "plain_noclip",
                    "B without it": "B_beta_old1_noclip",
                    "B with it": "B_beta_old1",
                },
            )
        ],
        "| variant | pass@1 | pass@16": [
            (
                [
                    *(f"{{{CLAMP2}/ARM/pass@k, k = {k}:n3}}" for k in (1, 16, 256)),
                    f"{{{CLAMP2}/ARM/pass@256/base:signed}}",
                ],
                {"starting model": "base", "no KL": "plain"}
                | {"A, reset every 200 steps, β = 10": "A_K200_beta10", "B, β_old = 10": "B_beta_old10"},
            ),
            (
                [
                    *(f"{{{CLAMP2}/ARM/pass@k, k = {k}:n3}}" for k in (1, 16, 256)),
                    f"{{{CLAMP2}/ARM/pass@256/base:n0}}",
                ],
                {"fixed reference, β = 10": "control_beta10"},
            ),
        ],
        "| training | B's accuracy": [
            (
                ["{core/ARM/B/share of the score/A:share}", "{core/ARM/B/share of the gain over base/A:share}", ""],
                {
                    f"healthy, {label}": task
                    for label, task in zip(("reversing", "sorting", "sums"), TASKS, strict=True)
                },
            ),
            (
                ["{stress/reverse_digits/B_lr10/share of the score/A_lr10:share}", "", ""],
                {"ten times the learning rate, reversing": ""},
            ),
            (
                ["{mild/reverse_digits/B_lr7/share of the score/A_lr7:share}", "", ""],
                {"seven times, reversing": ""},
            ),
        ],
        "| variant | pass@1, pass@8, greedy | drift | entropy": [
            (
                [
                    ", ".join(f"{{{CLAMP}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy")),
                    f"{{{CLAMP}/ARM/drift:n2}}",
                    f"{{{CLAMP}/ARM/entropy, last 20 steps:n2}}",
                    f"{{{CLAMP}/ARM/asymptote:n3}} ({{{CLAMP}/ARM/asymptotes:n0}} of {{{CLAMP}/ARM/runs:n0}})",
                ],
                {"starting model": "base", "no KL": "plain", "fixed reference": "control", "A": "A_K200"}
                | {"C hard": "C_hard_K200"},
            )
        ],
        "| variant | size of updates | pass@1 | minus A": [
            (
                [
                    f"{{{MODES}/ARM/size of updates/A_lr10:change}}",
                    f"{{{MODES}/ARM/pass@1:n3}}",
                    f"{{{MODES}/ARM/pass@1/A_lr10:signed}}, {{{MODES}/ARM/pass@1/A_lr10:p}}",
                    f"{{{MODES}/ARM/greedy:n3}}",
                    f"{{{MODES}/ARM/collapsed:n0}} of {{{MODES}/ARM/runs:n0}}",
                ],
                {
                    "A": "A_lr10",
                    "C soft, α = 0.1": "C_soft0.1_lr10",
                    "C hard": "C_hard_lr10",
                    "C asym": "C_asym_lr10",
                    "C step": "C_step_lr10",
                    "A, rate falls to 0 (exploratory)": "A_linear_lr10",
                    "no KL, rate falls to 0 (exploratory)": "plain_linear_lr10",
                },
            )
        ],
    },
}
# Sentences. A number that no piece has is a setting, or of another page.
SENTENCES = {
    "pages/fourth.md": [
        ".8 to 1.1 was predicted on both tasks. On reversing (third protocol) it is "
        "{dose/all/control_target0.3/slope of pass@1:ratio}, on sorting "
        "{dose_sorting/all/control_target0.14/slope of pass@1:ratio}, "
        "p {dose_sorting/all/control_target0.14/slope of pass@1:p}",
        f"whose highest share is {{{ENDS}_2_2/plain/the exception's share:0}}, ended "
        f"{{{ENDS}_2_2/control_target0.14/the exception's distance:1}} points above the share minus 5 there. "
        "Without that model the slope is {dose_sorting/all/control_target0.14/slope without the exception:ratio}",
        "the slope is {dose/all/plain/slope of pass@1:ratio}. For sorting a slope above .5 was predicted when that "
        "was known, and it is {dose_sorting/all/plain/slope of pass@1:ratio}, "
        "p {dose_sorting/all/plain/slope of pass@1:p}",
        "without it they are {dose/all/plain/slope without the highest share:ratio} and "
        "{dose_sorting/all/plain/slope without the highest share:ratio}, and the fixed reference's "
        "{dose/all/control_target0.3/slope without the highest share:ratio} and "
        "{dose_sorting/all/control_target0.14/slope without the highest share:ratio}",
        f"with a reset every 1,000 steps [{{{LONG_K}/A_K1000_beta1/pass@1/A_K200_beta1:+1}}]",
    ],
    "../README.md": [
        "it is {target2/gamed_reverse/control_target0.15/greedy/base:interval} from it (exploratory)",
        "objective, is {qwen/sampled, 512/B/pass@1/control:interval} points above the fixed reference (pre-registered)"
        ", greedy {qwen/greedy, 512/B/pass@1/control:interval}",
        "with the reset is {qwen/sampled, 512/A/pass@1/plain_again:interval} points from the one without a KL sampled",
        f"early stopping on both tasks, by {{{RIVALS[1]}/stopped/pass@1, the control's less it:1}} points or more",
        f"it is {{{SORTING}/control/pass@1/plain:0}} points above no KL",
        "A fixed reference was {core/mean/control/pass@1/plain:below} points lower",
        "On reversing the fixed reference is {rivals2/gamed_reverse/control_target0.3/greedy/base:interval} from it",
        f"the KL ended {{{FIVE_SEEDS}/sense, five seeds/plain:0}} points above no KL, not significantly: "
        f"{{{FIVE_SEEDS}/sense, five seeds/plain:range}}",
        f"Greedy it is {{{FIVE_SEEDS}/sense, greedy, five seeds/plain:0}} "
        f"{{{FIVE_SEEDS}/sense, greedy, five seeds/plain:range}}, and early stopping",
        "With the state times 0.1 it is {qwen/sampled, 512/C_soft0.1/pass@1/A:interval} points from the run with the "
        "reset alone (pre-registered): p is {qwen/sampled, 512/C_soft0.1/pass@1/A:p} by the verifier of the runs, and "
        "{qwen/sampled, 512/C_soft0.1/corrected/A:p} by the corrected one",
        "with the reset is {qwen/sampled, 512/A/pass@1/control:interval} points above the one without "
        "(pre-registered), greedy {qwen/greedy, 512/A/pass@1/control:interval}",
        f"ended {FIVE_REWARDS} points above no KL, sampled. With the two others, whose fully rewarded answers are "
        f"{TWO_SHARES} % correct, it made no significant difference",
        f"the fixed reference is {{{MORE_SEEDS}/control/sense, five seeds/plain:0}} "
        f"{{{MORE_SEEDS}/control/sense, five seeds/plain:range}} above no KL by that score, and three resets "
        f"ended {{{MORE_SEEDS}/A/sense, five seeds/control:below}} lower, not significantly "
        f"{{{MORE_SEEDS}/A/sense, five seeds/control:range}}",
    ],
    "../docs/preflight.md": [
        "at shares of {dose/gamed_reverse_1_0/plain/share:0} to {dose_sorting/sorting_ends_1_1/plain/share:0} %, it "
        "[ended within {dose_sorting/sorting_ends_1_1/control_target0.14/less the share - 0.05:below} points",
        "At {dose/gamed_reverse_0_0/plain/share:0} and {dose_sorting/sorting_ends_0_0/plain/share:0} % the model",
        "at {dose/gamed_reverse_2_2/plain/share:0} and {dose_sorting/sorting_ends_2_2/plain/share:0} % it ended at "
        "{dose/gamed_reverse_2_2/control_target0.3/pass@1:0} and "
        "{dose_sorting/sorting_ends_2_2/control_target0.14/pass@1:0} %",
        "ended at {dose_sorting/sorting_ends_0_0/plain/pass@1:0} to {dose/gamed_reverse/plain/pass@1:0} % up",
        f"the KL ended {{{SORTING}/control/pass@1/plain:0}} points above",
    ],
    "../docs/methods.md": [
        "missed {guard_gap//fourth/sum of the miss rate:n0} of "
        "{guard_gap//fourth/runs of the miss rate:n0} runs whose accuracy fell by more than 10 points "
        "({guard_gap//fourth/miss rate:percent}), and warned in {guard_gap//fourth/sum of the false-alarm rate:n0} of "
        "the other {guard_gap//fourth/runs of the false-alarm rate:n0} "
        "({guard_gap//fourth/false-alarm rate:percent})",
        "{guard_gap//fourth/runs of the miss rate without a KL:n0} of the "
        "{guard_gap//fourth/runs of the miss rate:n0} had no KL, of which it missed "
        "{guard_gap//fourth/sum of the miss rate without a KL:n0}",
        "lost another {guard_gap//fourth/fall after the firing:of 100} points",
        "all runs with a warning {guard_gap//fourth/fall after any firing:of 100}",
    ],
    "README.md": [
        f"a KL to the starting model ended {{{SORTING}/control/pass@1/plain:0}} points above no KL",
        f"it ended {FIVE_REWARDS} points above, sampled. With the two others, whose fully rewarded answers are "
        f"{TWO_SHARES} % correct",
        "With half of the target it is {target/gamed_sorting/control_target0.07/greedy/base:0} and "
        "{target2/gamed_reverse/control_target0.15/greedy/base:0} points above the starting model",
        f"a `kl_target` is {{{HELD_BY_TARGET[0]}/greedy/base:0}} points above the starting model on sorting, and "
        f"{{{HELD_BY_TARGET[1]}/greedy/base:0}} to {{tuned_rivals2/gamed_reverse/control_target0.3/greedy/base:0}} on",
        f"stopping rules without a KL ended {{{RIVALS[0]}/stopped/pass@1, the control's less it:0}} (sorting) and "
        f"{{{RIVALS[1]}/stopped/pass@1, the control's less it:0}} points (reversing) lower, and the best of 60 "
        f"checkpoints {{{TUNED[0]}/stopped/pass@1, the control's less it:0}} and "
        f"{{{TUNED[1]}/stopped/pass@1, the control's less it:0}} (pre-registered)",
        "the KL is {rejection_all/gamed_sorting/every rewarded/pass@1, the control's less it:below} points lower on "
        "sorting and {rejection_all/gamed_reverse/every rewarded/pass@1, the control's less it:1} higher on reversing",
        "Greedy it is {rejection_all/gamed_sorting/every rewarded/greedy, the control's less it:below} and "
        "{rejection_all/gamed_reverse/every rewarded/greedy, the control's less it:below} lower",
        f"on sorting {{{SORTING}/control/proxy:1}} % (no KL {{{SORTING}/plain/proxy:1}}), on reversing "
        f"{{{REVERSING}/control/proxy:1}} % (no KL {{{REVERSING}/plain/proxy:1}})",
        f"the fixed reference ended {{{MORE_SEEDS}/control/sense, five seeds/plain:0}} points "
        f"{{{MORE_SEEDS}/control/sense, five seeds/plain:range}} above no KL",
        f"and higher with one: {{{MORE_SEEDS}/A/sense, five seeds/control:interval}}, greedy "
        f"{{{MORE_SEEDS}/A/sense, greedy, five seeds/control:interval}}",
        f"three resets at β = 0.03 ended {{{MORE_SEEDS}/A/sense, five seeds/control:below}} points lower, sampled by "
        "the stricter score, not significantly "
        f"{{{MORE_SEEDS}/A/sense, five seeds/control:range}} over five seeds",
        f"it ended {{{FIVE_SEEDS}/sense, five seeds/plain:0}} points above no KL, not significantly "
        f"{{{FIVE_SEEDS}/sense, five seeds/plain:range}} (both pre-registered). Greedy it ended "
        f"{{{FIVE_SEEDS}/sense, greedy, five seeds/plain:0}} above",
        "at most {core/sorting/A/pass@1/plain:1} points, sampled",
        "A fixed reference was {core/mean/control/pass@1/plain:below} points lower",
        f"{{{SORTING}/A/resets, most:n0}} resets in 600 steps cost {{{SORTING}/A/pass@1/control:below}} points",
        "Sampled it has {qwen/sampled, 512/base/pass@1:1} % untrained, {qwen/sampled, 512/control/pass@1:1} % with a "
        "fixed reference, {qwen/sampled, 512/A/pass@1:1} % with one reset of the reference halfway (A), "
        "{qwen/sampled, 512/C_hard/pass@1:1} and {qwen/sampled, 512/C_soft0.1/pass@1:1} % with Adam's state cleared "
        "or times 0.1 at that reset, {qwen/sampled, 512/B/pass@1:1} % with B and "
        "{qwen/sampled, 512/plain_again/pass@1:1} % without",
        "untrained model {qwen/sampled, 512/base_default/corrected:1} %, by a verifier corrected since",
        "two runs without a KL are [{qwen/sampled, 200/plain_seed2/pass@1/plain_again:0} and "
        "{qwen/greedy, 200/plain_seed2/pass@1/plain_again:0} points apart](pages/qwen_200.md#two-runs-of-one-recipe), "
        "sampled and greedy, A and the fixed reference {qwen/sampled, 200/A/pass@1/control:0} and "
        "{qwen/greedy, 200/A/pass@1/control:0}.",
        "takes 0.88 of A's time",  # docs/performance.md
        "In healthy training B keeps {core/reverse_digits/B/share of the score/A:0} to "
        "{core/sums/B/share of the score/A:0} % of A's score",
        f"fallen less from its best (pre-registered, p {{{REVERSING}/B/fall/plain:p}})",
        f"The KL keeps {{{SORTING}/control/pass@1/plain:0}} more answers of 100 correct",
        f"it is {{{SORTING}/A_K100/greedy/control:below}} and {{{REVERSING}/A_K100/greedy/control:below}} points",
        f"which a fixed reference was not given, it is {{{SORTING}/A_K100_own/pass@1/control:interval}} and greedy "
        f"{{{SORTING}/A_K100_own/greedy/control:interval}} from the fixed one",
        f"`kl_target` is {{{SORTING}/control_target0.14/greedy/base:interval}} on sorting and "
        f"{{{REVERSING}/control_target0.3/greedy/base:interval}} on reversing; with β = 0.3 "
        f"{{{SORTING}/control/greedy/base:interval}} and {{{REVERSING}/control/greedy/base:interval}}. No KL is "
        f"{{{SORTING}/plain/greedy/base:interval}} and {{{REVERSING}/plain/greedy/base:interval}}",
        f"every 200 steps, it was {{{CLAMP}/A_K200/pass@1/control:1}} points",
        f"ended at {{{ENDS_REVERSING}_2_2/control_target0.3/pass@1:0}}, against the prediction",
        f"kept {{{FORGET}/replayed_kl/share kept:percent}} of what was lost without a KL**",
        f"fixed reference with β = 0.3 kept {{{FORGET}/control_beta0.3/share kept:percent}}.",
        "that left A {core/reverse_digits/A/drift:n2} nats per token from the starting model, and training "
        "without a KL {core/reverse_digits/plain/drift:n2}.",
        "with A's β, was {core/mean/control/pass@1/plain:interval} from no KL over the three tasks, and greedy "
        "{core/mean/control/greedy/plain:interval}",
        "difference of {core/sums/A/pass@1, seen after Holm/plain:1} to "
        "{core/sorting/B/pass@1, seen after Holm/plain:1} points",
        "added to it have {all//first/runs:n0} runs",
        "(protocols/protocol2.md) {all//second/runs:n0}, the",
        "(protocols/protocol3.md) {all//third/runs:n0}.",
    ],
    "pages/kl_target.md": [
        "a quarter of the preflight's number "
        "{target/gamed_sorting/control_target0.035/pass@1/control_target0.14:below} and "
        "{target2/gamed_reverse/control_target0.075/pass@1/control_target0.3:below} points",
        "from {target/gamed_sorting//least multiple within 5 points:n0} to "
        "{target/gamed_sorting//greatest multiple within 5 points:n0} times that number on sorting, and from "
        "{target2/gamed_reverse//least multiple within 5 points:n1} to "
        "{target2/gamed_reverse//greatest multiple within 5 points:n0} times on reversing",
        "from 0.3 to {target/gamed_sorting/control_target0.56/beta at the end:n1} at the end",
        f"the KL that 600 steps without one reach, {{{SORTING}/plain/drift:n2}}",
        "its interval reaches {target/gamed_sorting/control_target0.07/pass@1/control_target0.14:low}",
        "a quarter is {target2/gamed_reverse/control_target0.075/greedy/control_target0.3:interval} from the "
        "preflight's number, and half {target2/gamed_reverse/control_target0.15/greedy/control_target0.3:interval}",
        "Half is {target/gamed_sorting/control_target0.07/greedy/base:interval} and "
        "{target2/gamed_reverse/control_target0.15/greedy/base:interval} from the starting model, a quarter "
        "{target/gamed_sorting/control_target0.035/greedy/base:interval} and "
        "{target2/gamed_reverse/control_target0.075/greedy/base:interval} (exploratory)",
        f"On reversing the starting model has {{{REVERSING}/base/pass@1:0}} % sampled and "
        f"{{{REVERSING}/base/greedy:0}} % greedy",
        "The `kl_target` is 0.3 on reversing and 0.14 on sorting.",
        f"On sorting it has {{{ENDS}_0_0/base/pass@1:0}} % and {{{ENDS}_0_0/base/greedy:0}} %",
        f"At shares of {{{ENDS_REVERSING}_1_0/plain/share:0}} to {{{ENDS}_1_1/plain/share:0}} the fixed reference "
        f"ended within {{{ENDS}_1_1/control_target0.14/less the share - 0.05:below}} points",
        f"Greedy it ended {{{ENDS_REVERSING}/control_target0.3/greedy, less the share - 0.05:0}} to "
        f"{{{ENDS}_1_0/control_target0.14/greedy, less the share - 0.05:0}} points above",
        f"did not**: {{{ENDS_REVERSING}_2_2/control_target0.3/less the share - 0.05:interval}}.",
        f"At the highest share it is {{{ENDS}_2_2/control_target0.14/less the share - 0.05:interval}}.",
        f"it hardly learned: {{{ENDS_REVERSING}_0_0/control_target0.3/pass@1/base:interval}} from the starting model "
        f"on reversing, {{{ENDS}_0_0/control_target0.14/pass@1/base:interval}} on sorting",
        f"ended at {{{ENDS}_0_0/plain/pass@1:0}} to {{{ENDS_REVERSING}/plain/pass@1:0}} in the six",
        f"{{{ENDS}_2_2/plain/drift:n2}} nats per token at the end, the fixed reference "
        f"{{{ENDS}_2_2/control_target0.14/drift:n2}}",
        f"with a share of {{{ENDS}_2_2/plain/the exception's share:0}} at the last reward ended at "
        f"{{{ENDS}_2_2/plain/the exception's accuracy:0}}. At the reward before, the three with shares of "
        f"{{{ENDS}_1_1/plain/least share above it:0}} to {{{ENDS}_1_1/plain/greatest share above it:0}} ended at "
        f"{{{ENDS}_1_1/plain/least accuracy above it:0}} to {{{ENDS}_1_1/plain/greatest accuracy above it:0}}",
        f"at the lowest shares ({{{ENDS_REVERSING}_0_0/control_target0.3/greedy/base:interval}} and "
        f"{{{ENDS}_0_0/control_target0.14/greedy/base:interval}}). At the highest it is "
        f"{{{ENDS_REVERSING}_2_2/control_target0.3/greedy/base:interval}} on reversing and "
        f"{{{ENDS}_2_2/control_target0.14/greedy/base:interval}} on sorting",
        f"With it the runs ended {{{DOSE_LONG}/control_target0.6/less the share - 0.05:interval}} from that",
        f"preflight's target they ended {{{DOSE_LONG}/control_target0.3/less the share - 0.05:interval}} from it; "
        "after 600 steps it was {dose/gamed_reverse_2_2/control_target0.3/less the share - 0.05:below} below",
        f"refuted**, {{{DOSE_LONG}/control_target0.6/pass@1/control_target0.3:interval}}, "
        f"p {{{DOSE_LONG}/control_target0.6/pass@1/control_target0.3:p}}. Greedy it is "
        f"{{{DOSE_LONG}/control_target0.6/greedy/control_target0.3:interval}} (exploratory)",
        f"the KL to the starting model ended at {{{DOSE_LONG}/control_target0.6/drift:n2}} nats per token, with the "
        f"preflight's target at {{{DOSE_LONG}/control_target0.3/drift:n2}}",
        f"Most of {{{DOSE_LONG}/control_target0.3/pass@1/plain:+1}} is this run: there the gap is "
        f"{{{DOSE_LONG}/control_target0.3/gap of starting model 1/plain:1}}",
        f"fell from {{{DOSE_LONG}/plain/gold of starting model 1 at step 1500:0}} to "
        f"{{{DOSE_LONG}/plain/gold of starting model 1 at step 1800:0}} in the last 300 steps, while its "
        f"reward rose from {{{DOSE_LONG}/plain/reward of starting model 1 at step 1500:0}} to "
        f"{{{DOSE_LONG}/plain/reward of starting model 1 at step 1800:0}}",
    ],
    "pages/alternatives.md": [
        "samples {rejection_all/gamed_sorting/rejection_all/tokens, as a multiple of the control's:n1} times as many",
        "Every sample is {rejection_all/gamed_sorting/rejection_all/pass@1/rejection_sampling:interval} and "
        "{rejection_all/gamed_reverse/rejection_all/pass@1/rejection_sampling:interval} from that",
        f"the fixed reference is {{{TUNED[0]}/ten steps/greedy, the control's less it:interval}} and "
        f"{{{TUNED[1]}/ten steps/greedy, the control's less it:interval}} from it",
        f"on sorting {{{TUNED[0]}/control stopped/pass@1:0}} and greedy {{{TUNED[0]}/control stopped/greedy:0}} in "
        f"place of {{{TUNED[0]}/control_target0.14/pass@1:0}} and {{{TUNED[0]}/control_target0.14/greedy:0}}",
        f"the starting model's: {{{TUNED[0]}/base/best of 8, the control's less it:interval}} and "
        f"{{{TUNED[1]}/base/best of 8, the control's less it:interval}}",
        "Every rewarded sample has {rejection_all/gamed_sorting/rejection_all/best of 8:0} and "
        "{rejection_all/gamed_reverse/rejection_all/best of 8:0}, "
        "{rejection_all/gamed_sorting/rejection_all/best of 8/base:interval} and "
        "{rejection_all/gamed_reverse/rejection_all/best of 8/base:interval} from the starting model",
        "greedy {rejection_all/gamed_sorting/rejection_all/greedy/rejection_sampling:interval} and "
        "{rejection_all/gamed_reverse/rejection_all/greedy/rejection_sampling:interval}",
    ],
    "pages/strong_kl.md": [
        f"minus one every 200 is {{{CLAMP2}/A_beta10/pass@1/A_K200_beta10:interval}}, sampled",
        f"At β = 1 it is {{{CLAMP2}/A_beta1/pass@1/A_K200_beta1:interval}}, not",
        f"within 5 points of those every 200: {{{LONG_K}/A_K500_beta1/pass@1/A_K200_beta1:interval}} and "
        f"{{{LONG_K}/A_K1000_beta1/pass@1/A_K200_beta1:interval}}",
        f"Greedy they are {{{LONG_K}/A_K500_beta1/greedy/A_K200_beta1:interval}} and "
        f"{{{LONG_K}/A_K1000_beta1/greedy/A_K200_beta1:interval}}",
        f"reference at β = 1 is {{{CLAMP2}/control_beta1/pass@1/control_beta10:of 100}} above the one at β = 10",
        f"reset every 40 steps, is {{{CLAMP2}/A_beta10/pass@1/control_beta1:of 100}} above it",
    ],
    "pages/smollm2.md": [
        f"the checkpoint of step {{{MORE_SEEDS}/plain/first step that validation takes:n0}}, of seeds 5 to 9 alike",
        f"of step {{{MORE_SEEDS}/plain/last step that validation takes:n0}}, of seeds 5 to 9 alike",
        f"{{{MORE_SEEDS}_256/control/copies, seed 9:n0}} of its "
        f"{{{MORE_SEEDS}_256/control/texts that pass, seed 9:n0}} texts that pass do. Without such copies it has "
        f"{{{MORE_SEEDS}/control/uncopied, sampled, seed 9:n3}}",
        f"fixed reference − no KL is {{{MORE_SEEDS}/control/uncopied, five seeds/plain:interval}} over five seeds, "
        f"A − fixed reference {{{MORE_SEEDS}/A/uncopied, five seeds/control:interval}}",
        "Greedy it is not significantly above the starting model: "
        f"{{{SMOLLM2B}/control_target0.066/sense, greedy, over prompts/base:interval}} over prompts",
        f"greedy {{{SMOLLM2B}/A/sense, greedy, over prompts/control:interval}} over prompts and "
        f"{{{SMOLLM2B}/A/sense, greedy, over seeds/control:interval}} over seeds. By the first score it was "
        f"{{{SMOLLM2B}/A/right, greedy, over prompts/control:interval}} greedy over prompts",
        f"it is {{{SMOLLM2B}/control/right, over prompts/control_target0.066:interval}} from the `kl_target`",
        f"by the stricter one {{{SMOLLM2B}/control/sense, over prompts/control_target0.066:interval}}",
    ],
}
