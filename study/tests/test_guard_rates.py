"""How often `guard_gap: 0.1` fires, replayed over the training of the study: the table of docs/methods.md."""

from pathlib import Path

import pandas as pd
import pytest

from trl_prorl.guards.guard_gap import GuardGap


ROOT = Path(__file__).parents[2]
RUN = ["family", "arm", "base_seed", "seed"]
TASKS = ["gamed_sorting", "gamed_reverse"]


def fires(run: pd.DataFrame, window: int) -> bool:
    guard = GuardGap(0.1, "event", request=lambda reason: None, window=window)
    return any(guard.observe(row.gold, row.reward) is not None for row in run.itertuples())


@pytest.mark.parametrize("window", [20, 40, 60])
def test_how_often_guard_gap_fires(window):
    curves = pd.read_csv(ROOT / "study" / "tables" / "curves.csv.gz", usecols=[*RUN, "step", "gold", "reward"])
    curves = curves[curves.family.str.startswith("gamed")].sort_values("step")
    without = curves[curves.arm.isin(["plain", "plain_watched"])]
    cells = []
    for chosen in (
        without[without.family.isin(TASKS)],
        without[~without.family.isin(TASKS)],
        curves[curves.arm.str.startswith("control_target")],
    ):
        fired = [fires(run, window) for _, run in chosen.groupby(RUN)]
        cells.append(f"{sum(fired)} of {len(fired)}")
    row = f"| {window} steps | {' | '.join(cells)} |"
    assert row in (ROOT / "docs" / "methods.md").read_text()
