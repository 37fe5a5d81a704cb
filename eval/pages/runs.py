"""The runs one by one: scores and cost."""

from trl_prorl.eval.analysis.frame import Frame, Row
from trl_prorl.eval.analysis.sampled_scores import score
from trl_prorl.eval.analysis.stability import first_mean, last_mean
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, arrow_cell, cell, sides_cell, table_of
from trl_prorl.run.log_files import SIDES


def both_sides(key: str, spec: str, part: str | None = None):
    """Return the cell `base → trained` of a number of the held-out evaluation, or of a part of it."""

    def text(row: Row) -> str:
        passk = row.run.passk or {}
        sides = passk.get(part, {}) if part else passk
        return arrow_cell([sides.get(side, {}).get(key) for side in SIDES], spec)

    return text


def last(key: str, spec: str):
    return lambda row: cell(last_mean(row.run.measured(key)), spec)


def reward(row: Row) -> str:
    values = row.run.measured("reward")
    return arrow_cell([first_mean(values), last_mean(values)], ".3f")


OVERVIEW = [
    Column("run", lambda row: row.run.name),
    Column("variant", lambda row: row.run.kind.label),
    Column(
        "held-out pass@1, base → trained [95 %]",
        lambda row: sides_cell(*(score(row.run, side, 1) for side in SIDES), ".3f"),
    ),
    Column("resets", lambda row: NOT_MEASURED if row.resets is None else str(row.resets)),
    Column("s/step", lambda row: cell(row.seconds, ".2f")),
    Column("/control", lambda row: cell(row.over_control, ".2f")),
]
COLUMNS = [
    *OVERVIEW,
    Column("reference calls", lambda row: cell(row.reference_calls, ",.0f")),
    Column("steps", lambda row: str(row.run.last_step)),
    Column("training reward, first 5 % → last 10 %", reward),
    Column("greedy accuracy", both_sides("accuracy", ".3f", "greedy")),
    Column("tokens per sample", both_sides("mean_tokens", ".1f")),
    Column("truncated samples", both_sides("truncated", ".3f")),
    Column("final accuracy", last("accuracy", ".3f")),
    Column("final kl_ref", last("kl_ref", ".2g")),
    Column("final kl_old", last("kl_old", ".2g")),
]
NOTE = (
    "s/step: mean seconds per step, including validation; /control: divided by the control's. Truncated: the sample "
    "reached the length limit. KL: mean k3 estimate in nats per "
    f"token. Final: mean over the last 10 % of the steps. {NOT_MEASURED} means not measured."
)


def overview_table(frame: Frame) -> Table:
    """Return held-out pass@1 and step time, a row per run."""
    return table_of("Runs", OVERVIEW, frame.rows)


def section(frame: Frame) -> Section:
    return Section("Run by run", tables=[table_of("Run by run", COLUMNS, frame.rows, [NOTE])])
