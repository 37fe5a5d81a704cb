"""The report's tables, a row per run: numbers taken from the record, and what was not measured left open."""

import math
from dataclasses import dataclass, field

import pandas as pd
from rich.markup import escape
from rich.table import Table as RichTable

from eval.runs import Run
from eval.statistics import Estimate, paired_bootstrap_difference, pass_at_k_per_prompt, t_interval
from trl_prorl.run.identity import HARMLESS
from trl_prorl.shown import visible, without_html
from trl_prorl.variants import DIFFERENT_OBJECTIVE


NOT_MEASURED = "–"
FIRST_SHARE, LAST_SHARE = 0.05, 0.10

ANCHORS = {
    "plain": "none",
    "control": "KL to initial policy",
    "A": "KL to moving reference",
    "B": "KL to pi_old (a different objective)",
    "C": "KL to moving reference",
    "optimizer-only": "KL to initial policy",
    "base-anchored": "KL to base policy",
}

# Settings in which runs may differ and still be repetitions of one another: seeds, and what no number depends on. The
# model and the data, which a resume tells apart by content, are known by name alone here.
REPETITION_KEYS = ({"seed", "data_seed", "task_seed", "logging_dir"} | HARMLESS) - {
    "model_name_or_path",
    "dataset_name",
}


# Settings of evaluations during training, which sample from a random state of their own: only a trigger that watches one of
# their metrics lets them change a number.
VALIDATION_KEYS = frozenset(
    "eval_strategy eval_steps eval_delay eval_on_start eval_rows eval_accumulation_steps per_device_eval_batch_size "
    "num_generations_eval".split()
)
# What gives a setting its effect; where it is absent no number depends on the setting.
EFFECTIVE_WITH = {
    "optimizer_reset_alpha": lambda config: config.get("optimizer_reset") == "soft",
    "kl_horizon": lambda config: config.get("kl_target") is not None,
    "base_anchor_every": lambda config: bool(config.get("beta_base")),
    "pack_max_tokens": lambda config: config.get("pack_groups", "off") != "off",
    "elastic_ema": lambda config: bool(config.get("elastic_reset_every")),
    "entropy_patience": lambda config: config.get("entropy_floor") is not None,
    "ref_reset_kl_window": lambda config: config.get("ref_reset_kl") is not None,
    "dynamic_sampling_rewards": lambda config: bool(config.get("dynamic_sampling_rounds")),
    **dict.fromkeys(
        ("length_least", "length_on", "length_off"), lambda config: config.get("length_reward") == "cosine"
    ),
    **dict.fromkeys(("length_target", "length_cost"), lambda config: config.get("length_reward") == "target"),
    "length_margin": lambda config: config.get("length_reward") == "overlong",
    **dict.fromkeys(
        ("thinking_text", "thinking_answer_tokens"), lambda config: config.get("thinking_budget") is not None
    ),
    **dict.fromkeys(
        (*VALIDATION_KEYS, "ref_reset_metric", "ref_reset_metric_mode", "ref_reset_min_delta"),
        lambda config: bool(config.get("ref_reset_stall")) or config.get("ref_reset_drop") is not None,
    ),
}


@dataclass
class Table:
    """
    Cells as text: rendered as GitHub markdown and HTML in the report and by rich in the terminal.

    Attributes:
        notes (`list[str]`): Paragraphs below the table.
        definitions (`list[str]`): What the columns mean, one each; a list below the table, folded in HTML.
        groups (`list[tuple[str, int]]`): Headings over the header, each with the number of columns below it; HTML only.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)

    def to_markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        cells = ([without_html(visible(cell)).replace("|", "\\|") for cell in line] for line in lines)
        table = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        definitions = "\n".join(f"- {without_html(visible(line))}" for line in self.definitions)
        notes = [without_html(visible(note)) for note in self.notes]
        return "\n\n".join(filter(None, [table, *notes, definitions]))

    def to_rich(self) -> RichTable:
        caption = escape(visible(" ".join(self.notes))) or None
        table = RichTable(title=escape(visible(self.title)), caption=caption, caption_justify="left")
        for name in self.header:
            table.add_column(escape(visible(name)))
        for row in self.rows:
            table.add_row(*(escape(visible(text)) for text in row))
        return table


def cell(value: float | None, spec: str) -> str:
    """A number in the given format; an en dash for what was not measured."""
    return NOT_MEASURED if value is None or math.isnan(value) else format(value, spec)


def interval_cell(estimate: Estimate | None, spec: str) -> str:
    """`value [low, high]`, `(n/a)` where there is no interval, or an en dash."""
    if estimate is None:
        return NOT_MEASURED
    value, low, high = estimate
    return f"{value:{spec}} (n/a)" if math.isnan(low) else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if math.isfinite(value) else "unbounded"


def share_cell(share: Estimate) -> str:
    """As [`interval_cell`], in percent."""
    interval = "(n/a)" if math.isnan(share.low) else f"[{percent(share.low)}, {percent(share.high)}]"
    return f"{percent(share.value)} {interval}"


def first_mean(values: pd.Series | None) -> float | None:
    """Mean of the first 5 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[: max(1, round(FIRST_SHARE * len(values)))].mean())


def last_mean(values: pd.Series | None) -> float | None:
    """Mean of the last 10 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[-max(1, round(LAST_SHARE * len(values))) :].mean())


def median_step_seconds(run: Run) -> float | None:
    """Median seconds of an optimizer step."""
    seconds = run.measured("time_step")
    return None if seconds is None else float(seconds.median())


def evaluation_seconds(run: Run) -> float:
    """Mean seconds a step of the validation during training; 0 where none was recorded."""
    seconds, steps = run.total("time_eval"), run.measured("time_step")
    return 0.0 if not seconds or steps is None else seconds / len(steps)


def mean_step_seconds(run: Run) -> float | None:
    """
    Mean seconds of an optimizer step, validation included: the one to compare where only some steps generate, and where
    a reset waits for a validation that other runs do without.
    """
    seconds = run.measured("time_step")
    return None if seconds is None else float(seconds.mean()) + evaluation_seconds(run)


def reference_share(run: Run) -> float | None:
    """Seconds spent scoring with the reference over all seconds, in [0, 1]."""
    reference, step = run.stage_total("ref"), run.total("time_step")
    return None if reference is None or not step else reference / step


def control_of(run: Run, runs: list[Run]) -> Run | None:
    """The control a run is compared with: the one of its seed, else the first one, else `None`."""
    controls = [other for other in runs if other.variant == "control"]
    return next((control for control in controls if control.seed == run.seed), controls[0] if controls else None)


def held_out(run: Run, side: str, k: int) -> Estimate | None:
    """Held-out pass@k of one side (`base` or `trained`) with its interval; `None` if not evaluated."""
    result = (run.passk or {}).get(side, {})
    if f"pass@{k}" not in result:
        return None
    return Estimate(result[f"pass@{k}"], *result[f"interval@{k}"])


def per_prompt(run: Run, side: str, k: int = 1):
    """pass@k of each held-out prompt, shape (P,); the run must have been evaluated."""
    return pass_at_k_per_prompt(run.passk[side]["correct"], run.passk["n"], k)


def gain(run: Run) -> Estimate | None:
    """Held-out pass@1, trained less base, with its paired interval over prompts; `None` if not evaluated."""
    if run.passk is None:
        return None
    return paired_bootstrap_difference(per_prompt(run, "trained"), per_prompt(run, "base"))


def both_a_and_b(runs: list[Run]) -> bool:
    """Whether A and B stand side by side, so that their objectives must be told apart."""
    return {"A", "B"} <= {run.variant for run in runs}


def objective_notes(runs: list[Run]) -> list[str]:
    return [DIFFERENT_OBJECTIVE] if both_a_and_b(runs) else []


def overview_table(runs: list[Run]) -> Table:
    """The few numbers that fit a terminal of 80 columns."""
    rows = []
    for run in runs:
        seconds, control, resets = mean_step_seconds(run), control_of(run, runs), run.reset_steps()
        control_seconds = mean_step_seconds(control) if control else None
        base, share = held_out(run, "base", 1), reference_share(run)
        rows.append(
            [
                f"{run.name} ({run.variant})" if run.variant not in run.name else run.name,
                f"{cell(base.value, '.2f')} → {interval_cell(held_out(run, 'trained', 1), '.2f')}" if base else "–",
                NOT_MEASURED if resets is None else str(len(resets)),
                cell(run.total("ref_forward_calls"), ",.0f"),
                cell(None if share is None else 100 * share, ".0f"),
                cell(seconds, ".2f"),
                cell(seconds / control_seconds if seconds and control_seconds else None, ".2f"),
            ]
        )
    header = ["arm", "pass@1, base → trained", "resets", "ref calls", "ref %", "s/step", "/control"]
    return Table("Held-out pass@1 [95 % over prompts] and cost", header, rows, objective_notes(runs))


def learning_table(runs: list[Run]) -> Table:
    """What each run learned: rewards in training, pass@k on held-out prompts, distance from the anchors."""
    header = [
        "arm",
        "variant",
        "anchor",
        "resets",
        "steps",
        "training reward, first 5 % → last 10 %",
        "held-out pass@1, base → trained [95 %]",
        "gain in pass@1 [95 %]",
        "pass@4",
        "pass@8",
        "final kl_ref",
        "final kl_old",
    ]
    with_clipping = any(run.measured("clip_region_mean") is not None for run in runs)
    rows = []
    for run in runs:
        resets, reward, base = run.reset_steps(), run.measured("reward"), held_out(run, "base", 1)
        pass_4, pass_8 = held_out(run, "trained", 4), held_out(run, "trained", 8)
        row = [
            run.name,
            run.variant,
            ANCHORS.get(run.variant, NOT_MEASURED),
            NOT_MEASURED if resets is None else str(len(resets)),
            str(int(run.metrics["step"].max())),
            f"{cell(first_mean(reward), '.3f')} → {cell(last_mean(reward), '.3f')}" if reward is not None else "–",
            f"{cell(base.value, '.3f')} → {interval_cell(held_out(run, 'trained', 1), '.3f')}" if base else "–",
            interval_cell(gain(run), "+.3f"),
            cell(pass_4.value if pass_4 else None, ".3f"),
            cell(pass_8.value if pass_8 else None, ".3f"),
            cell(last_mean(run.measured("kl_ref")), ".2e"),
            cell(last_mean(run.measured("kl_old")), ".2e"),
        ]
        if with_clipping:
            row.append(cell(last_mean(run.measured("clip_region_mean")), ".4f"))
        rows.append(row)
    notes = [
        "pass@k is of the trained model where only one number stands. KL is the k3 mean over tokens in nats"
        f"{', the clip ratio the share of tokens clipped' if with_clipping else ''}; final means the mean of the last "
        f"10 % of the steps. {NOT_MEASURED} means not measured."
    ]
    header = header + ["final clip ratio"] if with_clipping else header
    return Table("What was learned", header, rows, notes + objective_notes(runs))


def cost_table(runs: list[Run]) -> Table:
    """What each run cost: scoring calls of the reference and of the old policy, and time."""
    rows, with_validation = [], any(run.total("time_eval") for run in runs)
    for run in runs:
        seconds, control, share = mean_step_seconds(run), control_of(run, runs), reference_share(run)
        control_seconds = mean_step_seconds(control) if control else None
        validation = cell(None if run.measured("time_eval") is None else evaluation_seconds(run), ".3g")
        rows.append(
            [
                run.name,
                run.variant,
                cell(run.total("ref_forward_calls"), ",.0f"),
                cell(run.total("old_forward_calls"), ",.0f"),
                cell(None if share is None else 100 * share, ".1f"),
                cell(median_step_seconds(run), ".3g"),
                *([validation] if with_validation else []),
                cell(seconds, ".3g"),
                cell(seconds / control_seconds if seconds and control_seconds else None, ".2f"),
            ]
        )
    header = [
        "arm",
        "variant",
        "reference forward calls",
        "old-policy forward calls",
        "reference share of time (%)",
        "median seconds a step",
        *(["validation, mean seconds a step"] if with_validation else []),
        "mean seconds a step",
        "mean step time / control's",
    ]
    notes = [
        "A forward call is one scoring call of the model, generation and evaluation not counted; calls are totals over "
        f"the run. {NOT_MEASURED} means not measured."
    ]
    if with_validation:
        notes.append("Mean seconds and their ratio include the validation during training, the median does not.")
    return Table("What it cost", header, rows, notes + objective_notes(runs))


def matters(key: str, config: dict) -> bool:
    """Whether a number of a run with this configuration depends on a key of it."""
    return key not in REPETITION_KEYS and EFFECTIVE_WITH.get(key, lambda config: True)(config)


def repetitions(runs: list[Run]) -> list[list[Run]]:
    """Groups of runs with one variant and one configuration, but for what no number depends on, in given order."""
    groups = {}
    for run in runs:
        settings = {key: value for key, value in run.config.items() if matters(key, run.config)}
        groups.setdefault((run.variant, repr(sorted(settings.items()))), []).append(run)
    return list(groups.values())


def seed_count(group: list[Run]) -> int:
    return len({str(run.seed) for run in group})


def configuration_labels(groups: list[list[Run]]) -> list[str]:
    """
    A short name per configuration: its variant, with the settings that set it apart from others of the variant. A setting
    that does nothing in a configuration is not named there, as α where the reset is hard.

    Args:
        groups (`list[list[Run]]`): As [`repetitions`] gives them.
    """
    labels = []
    for group in groups:
        own = group[0].config
        same_variant = [other[0].config for other in groups if other[0].variant == group[0].variant]
        keys = sorted({key for config in same_variant for key in config if matters(key, own)})
        differing = [
            key
            for key in keys
            if len({repr(config.get(key)) if matters(key, config) else "no effect" for config in same_variant}) > 1
        ]
        settings = ", ".join(f"{key}: {own.get(key, 'default')}" for key in differing)
        labels.append(f"{group[0].variant} ({settings})" if settings else group[0].variant)
    return labels


def mean_measured(values: list[float | None]) -> float | None:
    """Mean of the values that were measured; `None` if none was."""
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None


def over_seeds(values: list[float | None], spec: str) -> str:
    """Mean over seeds with its 95 % t-interval; the value alone where there is one, a dash where there is none."""
    values = [value for value in values if value is not None]
    if not values:
        return NOT_MEASURED
    return interval_cell(t_interval(values), spec) if len(values) > 1 else format(values[0], spec)


def seeds_table(runs: list[Run]) -> Table | None:
    """Mean over training seeds with its 95 % t-interval, a row per configuration; `None` if none has 2 seeds."""
    groups = repetitions(runs)
    if all(seed_count(group) < 2 for group in groups):
        return None

    rows = []
    for group in groups:
        trained, gains = [held_out(run, "trained", 1) for run in group], [gain(run) for run in group]
        rows.append(
            [
                group[0].variant,
                ", ".join(run.name for run in group),
                str(seed_count(group)),
                over_seeds([last_mean(run.measured("reward")) for run in group], ".3f"),
                over_seeds([estimate and estimate.value for estimate in trained], ".3f"),
                over_seeds([estimate and estimate.value for estimate in gains], "+.3f"),
                over_seeds([mean_step_seconds(run) for run in group], ".3g"),
            ]
        )
    header = [
        "variant",
        "arms",
        "seeds",
        "training reward, last 10 % [95 %]",
        "held-out pass@1, trained [95 %]",
        "gain in pass@1 [95 %]",
        "mean seconds a step [95 %]",
    ]
    notes = ["Mean over training seeds with Student's t-interval; no interval where there is one seed."]
    return Table("Over seeds", header, rows, notes + objective_notes(runs))
