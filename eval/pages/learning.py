"""What was learned, run by run: rewards in training, held-out pass@k, distance from the anchors."""

from trl_prorl.eval.analysis.passk import gain, score
from trl_prorl.eval.analysis.smoothing import first_mean, last_mean
from trl_prorl.eval.pages.cells import NOT_MEASURED, cell, interval_cell, resets_cell, sides_cell
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.variants import VARIANTS


def _is_clipping_measured(runs: list[Run]) -> bool:
    return any(run.measured("clip_region_mean") is not None for run in runs)


def _reward_cell(run: Run) -> str:
    reward = run.measured("reward")
    return NOT_MEASURED if reward is None else f"{first_mean(reward):.3f} → {last_mean(reward):.3f}"


def _value(run: Run, k: int) -> float | None:
    """Held-out pass@k of the trained model."""
    estimate = score(run, "trained", k)
    return None if estimate is None else estimate.value


def _gain(run: Run):
    return None if run.passk is None else gain(run.passk, 1)


def _last(run: Run, key: str) -> float | None:
    return last_mean(run.measured(key))


def anchor(run: Run) -> str:
    """What its KL was taken to."""
    variant = "control" if run.without_reset else run.variant
    return VARIANTS[variant].anchor if variant in VARIANTS else NOT_MEASURED


RUN_COLUMNS = [
    Column("arm", lambda run: run.name),
    Column("variant", lambda run: run.variant),
    Column("anchor", anchor),
    Column("resets", resets_cell),
    Column("steps", lambda run: str(int(run.metrics["step"].max()))),
    Column("training reward, first 5 % → last 10 %", _reward_cell),
    Column(
        "held-out pass@1, base → trained [95 %]",
        lambda run: sides_cell(score(run, "base", 1), score(run, "trained", 1), ".3f"),
    ),
    Column("gain in pass@1 [95 %]", lambda run: interval_cell(_gain(run), "+.3f")),
    Column("pass@4", lambda run: cell(_value(run, 4), ".3f")),
    Column("pass@8", lambda run: cell(_value(run, 8), ".3f")),
    Column("final kl_ref", lambda run: cell(_last(run, "kl_ref"), ".2e")),
    Column("final kl_old", lambda run: cell(_last(run, "kl_old"), ".2e")),
    Column("final clip ratio", lambda run: cell(_last(run, "clip_region_mean"), ".4f"), shown=_is_clipping_measured),
]


def learning_table(runs: list[Run]) -> Table:
    """What each run learned, a row each."""
    clipping = ", the clip ratio the share of tokens clipped" if _is_clipping_measured(runs) else ""
    notes = [
        "pass@k is of the trained model where only one number stands. KL is the k3 mean over tokens in "
        f"nats{clipping}; final means the mean of the last 10 % of the steps. {NOT_MEASURED} means not measured."
    ]
    return table_of("What was learned", RUN_COLUMNS, runs, notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    table = learning_table(runs)
    return [Section(table.title, [table])]
