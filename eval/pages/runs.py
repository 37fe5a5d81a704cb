"""The runs one by one: what each learned, what it cost, and the few numbers that fit a terminal of 80 columns."""

from trl_prorl.eval.analysis.cost import evaluation_seconds, median_step_seconds
from trl_prorl.eval.analysis.frame import Frame, Row
from trl_prorl.eval.analysis.passk import score
from trl_prorl.eval.analysis.smoothing import first_mean, last_mean
from trl_prorl.eval.pages.course import stages_panel
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.table import (
    NOT_MEASURED,
    Column,
    Table,
    arrow_cell,
    cell,
    interval_cell,
    percent_cell,
    sides_cell,
    table_of,
)
from trl_prorl.variants import VARIANTS


def _measured(key: str):
    """Whether a run of the rows measured a metric."""
    return lambda rows: any(row.run.measured(key) is not None for row in rows)


def _last(heading: str, key: str, spec: str, **more) -> Column:
    return Column(heading, lambda row: cell(last_mean(row.run.measured(key)), spec), **more)


def _pass_at(k: int) -> Column:
    def text(row):
        estimate = score(row.run, "trained", k)
        return cell(estimate and estimate.value, ".3f")

    return Column(f"pass@{k}", text)


def _reward(row: Row) -> str:
    reward = row.run.measured("reward")
    return arrow_cell([first_mean(reward), last_mean(reward)], ".3f")


def _anchor(row: Row) -> str:
    """What its KL was taken to."""
    variant = "control" if row.run.without_reset else row.run.variant
    return VARIANTS[variant].anchor if variant in VARIANTS else NOT_MEASURED


def _greedy(row: Row) -> list[float | None]:
    greedy = (row.run.passk or {}).get("greedy") or {}
    return [(greedy.get(side) or {}).get("accuracy") for side in ("base", "trained")]


def _sides(row: Row, key: str) -> list[float | None]:
    return [(row.run.passk or {}).get(side, {}).get(key) for side in ("base", "trained")]


NAME = Column("arm", lambda row: row.run.name)
VARIANT = Column("variant", lambda row: row.run.variant)
RESETS = Column("resets", lambda row: NOT_MEASURED if row.resets is None else str(row.resets))

LEARNED = [
    NAME,
    VARIANT,
    Column("anchor", _anchor),
    RESETS,
    Column("steps", lambda row: str(row.steps)),
    Column("training reward, first 5 % → last 10 %", _reward),
    Column("held-out pass@1, base → trained [95 %]", lambda row: sides_cell(row.base, row.trained, ".3f")),
    Column("gain in pass@1 [95 %]", lambda row: interval_cell(row.gain, "+.3f")),
    _pass_at(4),
    _pass_at(8),
    _last("final gold", "gold", ".3f", shown=_measured("gold")),
    _last("final kl_ref", "kl_ref", ".2e"),
    _last("final kl_old", "kl_old", ".2e"),
    _last("final clip ratio", "clip_region_mean", ".4f", shown=_measured("clip_region_mean")),
]
DECODED = [
    NAME,
    Column("greedy accuracy", lambda row: arrow_cell(_greedy(row), ".3f")),
    Column("mean tokens of a sample", lambda row: arrow_cell(_sides(row, "mean_tokens"), ".1f")),
    Column("samples cut off", lambda row: arrow_cell(_sides(row, "truncated"), ".3f")),
]
COST = [
    NAME,
    VARIANT,
    Column("reference forward calls", lambda row: cell(row.reference_calls, ",.0f")),
    Column("old-policy forward calls", lambda row: cell(row.run.total("old_forward_calls"), ",.0f")),
    Column("reference share of time (%)", lambda row: percent_cell(row.reference_share, ".1f")),
    Column("median seconds a step", lambda row: cell(median_step_seconds(row.run), ".3g")),
    Column(
        "validation, mean seconds a step",
        lambda row: cell(None if row.run.measured("time_eval") is None else evaluation_seconds(row.run), ".3g"),
        shown=lambda rows: any(row.run.total("time_eval") for row in rows),
    ),
    Column("mean seconds a step", lambda row: cell(row.seconds, ".3g")),
    Column("mean step time / control's", lambda row: cell(row.over_control, ".2f")),
]
OVERVIEW = [
    Column(
        "arm", lambda row: row.run.name if row.run.variant in row.run.name else f"{row.run.name} ({row.run.variant})"
    ),
    Column("pass@1, base → trained", lambda row: sides_cell(row.base, row.trained, ".2f")),
    RESETS,
    Column("ref calls", lambda row: cell(row.reference_calls, ",.0f")),
    Column("ref %", lambda row: percent_cell(row.reference_share, ".0f")),
    Column("s/step", lambda row: cell(row.seconds, ".2f")),
    Column("/control", lambda row: cell(row.over_control, ".2f")),
]


def overview_table(frame: Frame) -> Table:
    """Held-out pass@1 and cost, a row per run."""
    return table_of("Held-out pass@1 [95 % over prompts] and cost", OVERVIEW, frame.rows)


def learning_table(frame: Frame) -> Table:
    """What each run learned, a row each."""
    notes = [
        "pass@k is of the trained model where only one number stands. KL is the k3 mean over tokens in nats, the clip "
        "ratio the share of tokens clipped, gold the share of correct completions; final means the mean of the last "
        f"10 % of the steps. {NOT_MEASURED} means not measured."
    ]
    return table_of("What was learned", LEARNED, frame.rows, notes)


def decoding_table(frame: Frame) -> Table | None:
    """Greedy accuracy, length and truncation, base against trained; `None` if none was recorded."""
    rows = [row for row in frame.rows if any(column.cell(row) != NOT_MEASURED for column in DECODED[1:])]
    notes = ["Base → trained, on the held-out prompts; cut off means that a sample reached the length limit."]
    return table_of("Greedy decoding and length", DECODED, rows, notes) if rows else None


def cost_table(frame: Frame) -> Table:
    """What each run cost, a row each."""
    notes = [
        "A forward call is one scoring call of the model, generation and evaluation not counted; calls are totals "
        "over the run. Mean seconds and their ratio include the validation during training, the median does not. "
        f"{NOT_MEASURED} means not measured."
    ]
    return table_of("What it cost", COST, frame.rows, notes)


def learned(frame: Frame) -> list[Section]:
    tables = (learning_table(frame), decoding_table(frame))
    return [Section(table.title, [table]) for table in tables if table]


def costs(frame: Frame) -> list[Section]:
    table = cost_table(frame)
    picture = Picture("ref_cost.png", "Mean time of a step by stage", "Means over runs.", [stages_panel(frame)])
    return [Section(table.title, [table, picture])]
