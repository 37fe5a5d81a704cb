"""
Where the numbers of `study/figures.py` stand on the pages. The tables of `study/pages/details.md` are not all here.

`{block/family/arm/name:format}` is a number, `{block/family/arm/name/other:format}` that of an arm less another.
FORMATS in test_study.py has the formats; 0 and 1 are points of 100 with so many digits.
"""

SORTING = "gamed/gamed_sorting"
REVERSING = "gamed2/gamed_reverse"
RIVALS = ("rivals/gamed_sorting", "rivals2/gamed_reverse")
FORGET = "forget2/forget"
CLAMP = "clamp/reverse_level8"
CLAMP2 = "clamp2/reverse_level8"
MODES = "modes/reverse_digits"
PRETRAINED = "pretrained/smollm2"
SMOLLM2B = "smollm2b/smollm2"
TASKS = ("reverse_digits", "sorting", "sums")


def both(key: str, less: str = "") -> str:
    """A score, sampled and greedy."""
    return f"{{{key}/pass@1{less}:0}}, {{{key}/greedy{less}:0}}"


def change(key: str) -> str:
    """A difference with its interval and p."""
    return f"{{{key}:interval}}, {{{key}:p}}"


def by_both_rules(place: str, seed: int) -> str:
    """SmolLM2's score by the registered rule, and by the stricter one."""
    return f"{{{place}/ARM/right, sampled, seed {seed}:n3}} ({{{place}/ARM/sense, sampled, seed {seed}:n3}})"


# The cells of a table's rows, for each table by how its first line begins. A row is its label, the arm for ARM and
# the one for LESS. A cell of the page may be left empty.
GAMED = {
    "**base**": "base",
    "plain": "plain",
    "control, β = 0.3": "control",
    "A, reset every 100 steps": "A_K100",
    "B": "B",
}
HELD = {
    "**base**": "base",
    "plain": "plain",
    "control, `kl_target`": "control",
    "plain, stopped": "stopped",
    "plain at a tenth of the rate": "tenth",
    "plain, LoRA of rank 4": "rank 4",
    "rejection sampling": "rejection",
    "best of 8 of the base, by reward": "best of 8",
}
FRONT = {
    "starting model": "base",
    "no KL": "plain",
    "no KL, stopped early by the best of three rules": "stopped",
    "rejection sampling (fine-tuning on rewarded samples)": "rejection",
    "best of 8 samples of the starting model, by reward": "best of 8",
    "**fixed reference with a `kl_target`**": "control",
}
TREATMENTS = {
    "**base**": "base",
    "A": "A_lr10",
    "C soft, m and v × 0.1": "C_soft0.1_lr10",
    "C hard, all cleared": "C_hard_lr10",
    "C asym, m cleared": "C_asym_lr10",
    "C step, step count cleared": "C_step_lr10",
    "A, rate falls to 0 (exploratory)": "A_linear_lr10",
}
RESETS = "{side/reverse_digits/ARM/resets, most:n0}"
FAST = {"plain": "plain", "B": "B", "A": "A", "C hard": "C_hard", "control": "control"}
TABLES = {
    "../README.md": {
        "| | sorting: sampled": [
            ([f"{{{place}/ARM/{score}:0}}" for place in RIVALS for score in ("pass@1", "greedy")], FRONT),
        ],
    },
    "README.md": {
        "| score, sampled and greedy; p for sampled | sorting | less plain": [
            (
                [
                    both(f"{SORTING}/ARM"),
                    change(f"{SORTING}/ARM/pass@1/plain"),
                    both(f"{REVERSING}/ARM"),
                    change(f"{REVERSING}/ARM/pass@1/plain"),
                ],
                GAMED,
            ),
            (
                [both(f"{SORTING}/control_target0.14"), "", both(f"{REVERSING}/control_target0.3"), ""],
                {"control, `kl_target` (exploratory)": ""},
            ),
        ],
        "| share | control": [
            ([both("dose/gamed_reverse/base"), both("dose/gamed_reverse/base"), ""], {"**base**": ""}),
            (
                [
                    both("dose/ARM/control_target0.3"),
                    both("dose/ARM/plain"),
                    "{dose/ARM/control_target0.3/pass@1/plain:interval}",
                ],
                {
                    f"{{dose/{family}/plain/share:0}}": family
                    for family in ("gamed_reverse_0_0", "gamed_reverse_1_0", "gamed_reverse", "gamed_reverse_2_2")
                },
            ),
        ],
        "| score, sampled and greedy; p for sampled | sorting | control less it": [
            (
                [
                    cell
                    for place in RIVALS
                    for cell in (both(f"{place}/ARM"), change(f"{place}/ARM/pass@1, the control's less it"))
                ],
                HELD,
            )
        ],
        "| | reward |": [
            (
                [
                    f"{{{PRETRAINED}/ARM/LESS:0}}",
                    f"{{{PRETRAINED}/ARM/pass@1:1}}, {{{PRETRAINED}/ARM/greedy:1}}",
                    f"{{{PRETRAINED}/ARM/sense, sampled:1}}",
                    f"{{{PRETRAINED}/ARM/text_perplexity on instructions:n1}}",
                ],
                {
                    "**base**": ("base", "reward on instructions"),
                    "plain": ("plain", "proxy"),
                    "control, β = 0.3": ("control", "proxy"),
                    "A, reset every 40 steps": ("A", "proxy"),
                    "B": ("B", "proxy"),
                },
            ),
            (
                [
                    "",
                    f"{{{PRETRAINED}/ARM/right, over prompts/LESS:interval}}",
                    f"{{{PRETRAINED}/ARM/sense, over prompts/LESS:interval}}",
                    "",
                ],
                {"control − plain": ("control", "plain"), "A − control": ("A", "control")},
            ),
        ],
        "| | registered score: sampled, greedy | stricter": [
            (
                [
                    f"{{{SMOLLM2B}/ARM/{rule}, sampled:1}}, {{{SMOLLM2B}/ARM/{rule}, greedy:1}}"
                    for rule in ("right", "sense")
                ],
                {"**base**": "base", "plain": "plain", "plain, stopped": "stopped"}
                | {"control, `kl_target`": "control_target0.066"},
            ),
            (
                [f"{{{SMOLLM2B}/ARM/{rule}, over prompts/LESS:interval}}" for rule in ("right", "sense")],
                {"control − plain": ("control_target0.066", "plain")},
            ),
        ],
        "| | reversing: sampled, greedy | KL": [
            (
                [
                    both(f"{FORGET}/ARM"),
                    f"{{{FORGET}/ARM/KL on the others:n3}}",
                    f"{{{FORGET}/ARM/kept:0}}",
                    change(f"{FORGET}/ARM/kept/plain"),
                ],
                {"**base**": "base", "plain": "plain", "control, β = 0.3": "control_beta0.3"}
                | {"control, β = 1": "control_beta1", "replayed KL": "replayed_kl"},
            )
        ],
        "| less plain | reversing": [
            ([f"{{core/{task}/ARM/pass@1/plain:interval}}" for task in TASKS], {"A, sampled": "A", "B, sampled": "B"}),
            (
                [f"{{core/{task}/ARM/greedy/plain:+1}}" for task in TASKS],
                {"A, greedy (exploratory)": "A", "B, greedy (exploratory)": "B"},
            ),
        ],
        "| training | B's sampled score": [
            (
                [", ".join(f"{{core/{task}/B/share of the score/A:share}}" for task in TASKS), ""],
                {"healthy: reversing, sorting, sums": ""},
            ),
            (
                ["{stress/reverse_digits/B_lr10/share of the score/A_lr10:share}", ""],
                {"ten times the learning rate": ""},
            ),
            (["{mild/reverse_digits/B_lr7/share of the score/A_lr7:share}", ""], {"seven times": ""}),
        ],
        "| arm: with the clip, without | 2 uses, sampled | 8, sampled | 32, sampled | 32, greedy |": [
            (
                [
                    f"{{reuse{uses}/reverse_digits/ARM_mu{uses}/{score}:0}}, "
                    f"{{reuse{uses}/reverse_digits/ARM_noclip_mu{uses}/{score}:0}}"
                    for uses, score in ((2, "pass@1"), (8, "pass@1"), (32, "pass@1"), (32, "greedy"))
                ],
                {"plain": "plain", "control, β = 0.3": "control_beta0.3", "B, β_old = 1": "B_beta_old1"},
            )
        ],
        "| sampled, less plain with the clip | 8 uses (exploratory) | 32 uses (registered), p |": [
            (
                [change(f"reuse{uses}/reverse_digits/ARM_mu{uses}/pass@1/plain_mu{uses}") for uses in (8, 32)],
                {"plain without it": "plain_noclip", "B without it": "B_beta_old1_noclip", "B with it": "B_beta_old1"},
            )
        ],
        "| | sampled | greedy | KL to the base": [
            (
                [
                    f"{{{CLAMP}/ARM/pass@1:0}}",
                    f"{{{CLAMP}/ARM/greedy:0}}",
                    f"{{{CLAMP}/ARM/drift:n2}}",
                    change(f"{CLAMP}/ARM/pass@1/control"),
                ],
                {"**base**": "base", "plain": "plain", "control": "control"}
                | {"A, reset every 200 steps": "A_K200", "C hard, Adam cleared as well": "C_hard_K200"},
            )
        ],
        "| β | | sampled, greedy": [
            (
                [
                    both(f"{CLAMP2}/ARM"),
                    f"{{{CLAMP2}/ARM/drift:n2}}",
                    change(f"{CLAMP2}/ARM/pass@1/LESS"),
                    f"{{{CLAMP2}/ARM/given back:0}}",
                ],
                {
                    f"{beta} | {label}": (f"{arm}{beta}", f"{less}{beta}".replace("plain" + beta, "plain"))
                    for beta in ("1", "10")
                    for label, arm, less in (
                        ("control", "control_beta", "control_beta"),
                        ("A, reset every 200 steps", "A_K200_beta", "control_beta"),
                        ("A, reset every 40 steps", "A_beta", "control_beta"),
                        ("B, β_old", "B_beta_old", "plain"),
                    )
                }
                | {" | plain": "plain"},
            )
        ],
        "| sampled | pass@1 | pass@16 | pass@256 | pass@256 less the base |": [
            (
                [
                    *(f"{{{CLAMP2}/ARM/pass@k, k = {k}:0}}" for k in (1, 16, 256)),
                    f"{{{CLAMP2}/ARM/pass@256/base:interval}}",
                ],
                {"**base**": "base", "plain": "plain"}
                | {"A, reset every 200 steps": "A_K200_beta10", "B, β = 10": "B_beta_old10"},
            ),
            (
                [*(f"{{{CLAMP2}/ARM/pass@k, k = {k}:0}}" for k in (1, 16, 256)), f"{{{CLAMP2}/ARM/pass@256/base:0}}"],
                {"control, β = 10": "control_beta10"},
            ),
        ],
        "| | sampled | less A, p": [
            (
                [
                    f"{{{MODES}/ARM/pass@1:0}}",
                    change(f"{MODES}/ARM/pass@1/A_lr10"),
                    f"{{{MODES}/ARM/greedy:0}}",
                    f"{{{MODES}/ARM/collapsed:n0}} of {{{MODES}/ARM/runs:n0}}",
                ],
                TREATMENTS,
            )
        ],
    },
    "pages/smollm2.md": {
        "| arm | reward | right: pass@1": [
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
                    "**base**": ("base", "reward on instructions"),
                    "plain": ("plain", "proxy"),
                    "control, β = 0.3": ("control", "proxy"),
                    "A, K = 40, β = 0.3": ("A", "proxy"),
                    "B, β_old = 1": ("B", "proxy"),
                },
            )
        ],
        "| pass@1 (without bare words, below) | seed 2 | seed 3 | seed 4 |": [
            (
                [by_both_rules(PRETRAINED, seed) for seed in (2, 3, 4)],
                {"plain": "plain", "control": "control", "A": "A", "B": "B"},
            )
        ],
        "| | seed 5 | seed 6 | seed 7 |": [
            (
                [by_both_rules(SMOLLM2B, seed) for seed in (5, 6, 7)],
                {"plain": "plain", "plain, stopped": "stopped", "control, `kl_target`": "control_target0.066"},
            )
        ],
    },
    "pages/qwen.md": {
        "| | pass@1 | pass@2 | right among": [
            (
                [
                    "{qwen/LESS/ARM/pass@1:of 100}",
                    "{qwen/LESS/ARM/pass@2:1} %",
                    "{qwen/LESS/ARM/right of whole:1} %",
                    "{qwen/LESS/ARM/cut:1} %",
                    "{qwen/LESS/ARM/tokens:n0}",
                ],
                {
                    f"{label}, {decoding}": (arm, decoding)
                    for label, arm in (
                        ("base", "base of plain"),
                        ("plain", "plain"),
                        ("base in bf16", "base of plain_seed2"),
                        ("seed 2, bf16", "plain_seed2"),
                        ("control, seed 2, bf16", "control_seed2"),
                    )
                    for decoding in ("sampled", "greedy")
                },
            )
        ],
    },
    "pages/details.md": {
        "| less plain | pass@1: registered interval": [
            (
                [
                    "{core/LESS/ARM/pass@1/plain:signed}",
                    "{core/LESS/ARM/pass@1, over bases/plain:signed}",
                    "{core/LESS/ARM/pass@1, equivalent/plain:n3}",
                    *(f"{{core/LESS/ARM/{score}/plain:signed}}" for score in ("greedy", "pass@8")),
                ],
                {
                    f"{arm}, {label}": (arm, task)
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
                {"A, mean (exploratory)": "A", "B, mean (exploratory)": "B"},
            ),
        ],
        "| arm | resets | pass@1 | less plain | less A | pass@8 |": [
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
                    "plain": ("plain", RESETS),
                    "A, K = 40": ("A", RESETS),
                    "A, K = 20": ("A_K20", RESETS),
                    "A, K = 80": ("A_K80", RESETS),
                    "A, reset when the KL exceeds 0.015": ("A_spike", "11, 12, 12"),
                    "the same with k2 (two parts of ProRL v2)": ("C_keep_spike", "11, 12, 12"),
                    "A, reset when validation stalls": ("A_stall", "1, 0, 0"),
                    "C hard, when validation stalls (ProRL)": ("C_hard_stall", "1, 0, 0"),
                    "A, reference a moving average": ("A_ema", RESETS),
                    "A, adaptive β": ("A_adaptive", RESETS),
                    "A, β = 0.3": ("A_beta0.3", RESETS),
                    "A, β = 3": ("A_beta3", RESETS),
                    "A, anchored to the base, too": ("A_base_anchor", RESETS),
                    "C soft, α = 0.3": ("C_soft0.3", RESETS),
                    "optimizer cleared, reference stays": ("optimizer_only", RESETS),
                    "Elastic Reset, without its KL": ("A_elastic", RESETS),
                    "B": ("B", RESETS),
                    "B without the clip": ("B_noclip", RESETS),
                    "B, β_old = 0.3": ("B_beta_old0.3", RESETS),
                    "B, β_old = 3": ("B_beta_old3", RESETS),
                    "B, anchored to the base, too": ("B_base_anchor", RESETS),
                },
            )
        ],
        "| arm | pass@1 (base: 0.166) | less the base | collapsed | drift": [
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
        "| arm | pass@1 (base: 0.166) | less the base | collapsed | reward": [
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
        "| arm | reversing | sorting | sums | forwards": [
            (
                [
                    *(
                        ", ".join(f"{{core/{task}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy"))
                        for task in TASKS
                    ),
                    "{core/sums/ARM/ref_forward_calls:n0}",
                ],
                {"**base**": "base", "plain": "plain", "control": "control", "A": "A", "B": "B", "C hard": "C_hard"}
                | {"C soft, α = 0.1": "C_soft0.1", "C asym": "C_asym", "C step": "C_step"},
            )
        ],
        "| arm | sorting: pass@1, pass@8, greedy | drift": [
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
                    "**base**": "base",
                    "plain": "plain",
                    "control": "control",
                    "A, K = 100": "A_K100",
                    "A, K = 40": "A",
                    "A, K = 300": "A_K300",
                    "A, K = 100, β = 1": "A_K100_own",
                    "C hard, K = 100": "C_hard_K100",
                    "plain, a third of the rate": "plain_lr_third",
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
                {"*control, `kl_target`*": ""},
            ),
        ],
        "| less | sorting, p | reversing, p |": [
            (
                [
                    f"{{{place}/ARM/pass@1/LESS:signed}}, {{{place}/ARM/pass@1/LESS:p}}"
                    for place in (SORTING, REVERSING)
                ],
                {
                    "control − plain": ("control", "plain"),
                    "A − plain": ("A_K100", "plain"),
                    "B − plain": ("B", "plain"),
                    "A − control": ("A_K100", "control"),
                },
            )
        ],
        "| arm: with the clip, without | 2 uses | 8 | 32 |": [
            (
                [
                    f"{{reuse{uses}/reverse_digits/ARM_mu{uses}/pass@1:n3}}, "
                    f"{{reuse{uses}/reverse_digits/ARM_noclip_mu{uses}/pass@1:n3}}"
                    for uses in (2, 8, 32)
                ],
                {"plain": "plain", "control, β = 0.3": "control_beta0.3", "B, β_old = 1": "B_beta_old1"}
                | {"… β_old = 0.3": "B_beta_old0.3"},
            )
        ],
        "| arm | pass@1, pass@8, greedy | drift | entropy": [
            (
                [
                    ", ".join(f"{{{CLAMP}/ARM/{score}:n3}}" for score in ("pass@1", "pass@8", "greedy")),
                    f"{{{CLAMP}/ARM/drift:n2}}",
                    f"{{{CLAMP}/ARM/entropy, last 20 steps:n2}}",
                    f"{{{CLAMP}/ARM/asymptote:n3}} ({{{CLAMP}/ARM/asymptotes:n0}} of {{{CLAMP}/ARM/runs:n0}})",
                ],
                {"**base**": "base", "plain": "plain", "control": "control", "A": "A_K200", "C hard": "C_hard_K200"},
            )
        ],
        "| arm | updates | pass@1 | less A, p": [
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
                    "*A, rate falls to 0*": "A_linear_lr10",
                    "*plain, rate falls to 0*": "plain_linear_lr10",
                },
            )
        ],
    },
}
# Sentences, and pieces of the table of advice. A number that no piece has is a setting, or of another page.
RIVAL = "pass@1, the control's less it:+1"
RIVAL_GREEDY = "greedy, the control's less it:+1"
SENTENCES = {
    "../README.md": [
        f"above the early stop, by {{{RIVALS[1]}/stopped/pass@1, the control's less it:1}} points or more",
        f"it is {{{SORTING}/control/pass@1/plain:0}} points above no KL",
        "the starting model on reversing: {rivals2/gamed_reverse/control_target0.3/greedy/base:interval}.",
        f"ended {{{SMOLLM2B}/control_target0.066/sense, over prompts/plain:0}} points higher than none",
        f"That interval is {{{SMOLLM2B}/control_target0.066/sense, over prompts/plain:range}} over prompts, and "
        f"{{{SMOLLM2B}/control_target0.066/sense, over seeds/plain:range}} over three seeds.",
        f"Above an early stop it is {{{SMOLLM2B}/control_target0.066/sense, over prompts/stopped:+1}}, over seeds "
        f"{{{SMOLLM2B}/control_target0.066/sense, over seeds/stopped:range}}.",
    ],
    "README.md": [
        "A less plain: [" + ", ".join(f"{{core/{task}/A/pass@1/plain:+1}}" for task in TASKS) + "](",
        f"control less plain: [{{{SORTING}/control/pass@1/plain:+1}}, {{{REVERSING}/control/pass@1/plain:+1}}](",
        f"best stop: [{{{RIVALS[0]}/stopped/{RIVAL}}}, {{{RIVALS[1]}/stopped/{RIVAL}}}](",
        f" sampled, {{{RIVALS[0]}/stopped/{RIVAL_GREEDY}}}, {{{RIVALS[1]}/stopped/{RIVAL_GREEDY}}} greedy; "
        f"less fine-tuning {{{RIVALS[0]}/rejection/{RIVAL}}}, {{{RIVALS[1]}/rejection/{RIVAL}}} sampled, "
        f"{{{RIVALS[0]}/rejection/{RIVAL_GREEDY}}}, {{{RIVALS[1]}/rejection/{RIVAL_GREEDY}}} greedy |",
        f"at most one reset; {{{SORTING}/A/resets, most:n0}} resets cost | less the control: "
        f"[{{{SORTING}/A_K300/pass@1/control:+1}}](",
        f" with one reset in 600 steps, {{{SORTING}/A/pass@1/control:+1}} with {{{SORTING}/A/resets, most:n0}}, "
        "sampled; "
        f"{{{SORTING}/A_K300/greedy/control:+1}}, {{{SORTING}/A/greedy/control:+1}} greedy |",
        f"less the control at β = 10: plain [{{{CLAMP}/plain/pass@1/control:+1}}](",
        f", A {{{CLAMP}/A_K200/pass@1/control:+1}} with a reset every 200 steps, "
        f"{{{CLAMP2}/A_beta10/pass@1/control_beta10:+1}} every 40 |",
        f"B less plain, gamed: {{{SORTING}/B/pass@1/plain:+1}}, {{{REVERSING}/B/pass@1/plain:+1}} |",
        "without it less with it, plain: [{reuse8/reverse_digits/plain_noclip_mu8/pass@1/plain_mu8:+1} at 8 uses, "
        "{reuse32/reverse_digits/plain_noclip_mu32/pass@1/plain_mu32:+1} at 32](",
        "32 registered (p {reuse32/reverse_digits/plain_noclip_mu32/pass@1/plain_mu32:p})",
        # plain's own score at the high rate is 0
        "plain at a tenth of the rate less plain {core/reverse_digits/plain/pass@1:+1}; "
        f"less A: a rate that falls to 0 [{{{MODES}/A_linear_lr10/pass@1/A_lr10:+1}}](",
        f", resets of Adam's step count {{{MODES}/C_step_lr10/pass@1/A_lr10:+1}} |",
        f"falling rate collapsed in {{{MODES}/plain_linear_lr10/collapsed:n0}} of "
        f"{{{MODES}/plain_linear_lr10/runs:n0}};",
        "clearing less keeping: " + ", ".join(f"{{core/{task}/C_hard/pass@1/A:+1}}" for task in TASKS) + " |",
        f"[kept {{{FORGET}/replayed_kl/share kept:0}} % of what plain lost](",
        f"less plain {{{FORGET}/replayed_kl/kept/plain:+1}}, not told apart |",
        f"**With the KL {{{SORTING}/control/pass@1/plain:0}} of 100 answers more are right",
        f"**With the KL {{{REVERSING}/control/pass@1/plain:0}} of 100 answers more are right",
        "takes 0.88 of A's time",  # docs/performance.md
        "difference of {core/sums/A/pass@1, seen after Holm/plain:1} to "
        "{core/sorting/B/pass@1, seen after Holm/plain:1} points",
        "registered, 3 tasks × {core/sums/A/bases:n0} bases, none told apart; the KL was weak |",
        f"registered at β = 0.3, 2 tasks × {{{REVERSING}/control/bases:n0}} bases;",
        f"greedy exploratory; 2 tasks × {{{RIVALS[0]}/control_target0.14/bases:n0}} bases |",
        f"exploratory, 1 task × {{{SORTING}/A_K300/bases:n0}} bases |",
        f"1 task × {{{CLAMP}/A_K200/bases:n0}} bases, every 40 × {{{CLAMP2}/A_beta10/bases:n0}} |",
        f"registered, 2 tasks × {{{REVERSING}/B/bases:n0}} bases, not told apart |",
        "1 task × {reuse32/reverse_digits/plain_mu32/bases:n0} bases |",
        f"1 task × {{{MODES}/C_step_lr10/bases:n0}} bases |",
        "registered, 3 tasks × {core/sums/C_hard/bases:n0} bases, none told apart |",
        f"registered, 1 task × {{{FORGET}/replayed_kl/bases:n0}} bases; a script",
        f"it is {{{SORTING}/A_K100/greedy/control:below}} and {{{REVERSING}/A_K100/greedy/control:below}} points",
        "At two shares of one task, {dose/gamed_reverse_1_0/plain/share:0} and {dose/gamed_reverse/plain/share:0},",
        "within {dose/gamed_reverse_1_0/control_target0.3/less the share - 0.05:1} points of the predicted value",
        "it ends {dose/gamed_reverse_2_2/control_target0.3/less the share - 0.05:below} below the prediction",
        f"of plain's {{{PRETRAINED}/plain/right texts:n0}} right texts {{{PRETRAINED}/plain/bare texts:n0}} are bare",
        f"the interval is {{{SMOLLM2B}/control_target0.066/sense, over seeds/plain:range}}.",
        f"that stop is {{{SMOLLM2B}/control_target0.066/sense, over prompts/stopped:interval}} over prompts, and "
        f"{{{SMOLLM2B}/control_target0.066/sense, over seeds/stopped:range}} over seeds",
        f"kept {{{FORGET}/replayed_kl/share kept:percent}} of what plain lost**",
        f"control at β = 0.3 kept {{{FORGET}/control_beta0.3/share kept:percent}}.",
        "that left A {core/reverse_digits/A/drift:n2} nats a token from the base, and plain "
        "{core/reverse_digits/plain/drift:n2}.",
        f"minus one every 200 is {{{CLAMP2}/A_beta10/pass@1/A_K200_beta10:interval}}. At β = 1 it is "
        f"{{{CLAMP2}/A_beta1/pass@1/A_K200_beta1:interval}}, no",
        "the ratio is "
        + " and ".join(
            (
                "{all/reverse_digits/plain_mu32/rate of the second half, 1, 1:n2}, "
                "{all/reverse_digits/plain_mu32/rate of the second half, 2, 2:n2}",
                "{all/reverse_digits/plain_mu32/rate of the second half, 3, 3:n2}",
            )
        ),
        "in {all//resets/arms back in three steps:n0} of {all//resets/arms:n0} arms",
        "added to it have {all//first/runs:n0} runs",
        "(protocols/protocol2.md) {all//second/runs:n0}. The",
        "(protocols/protocol3.md) has {all//third/runs:n0}.",
    ],
}
