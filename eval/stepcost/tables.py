"""What was measured as tables of a terminal."""

import statistics

from rich.console import Console
from rich.table import Table

from trl_prorl.eval.stepcost.arms import BASELINE, FLOOR
from trl_prorl.eval.stepcost.comparing import ROUNDS, generates, ratio


def show(console: Console, title: str, result: dict[str, dict]) -> None:
    """Two tables: seconds of a step, and how many times as fast as the baseline an arm is."""
    peaks = any("peak" in values for values in result.values())
    seconds = Table("arm", *(f"{name}, s" for name in ("generation", "scoring", "update", "whole step")), title=title)
    if peaks:
        seconds.add_column("peak GiB, above what is held")
    timed = {title: rounds for title, rounds in ROUNDS.items() if rounds == "phase" or generates(result)}
    ratios = Table("arm", *(f"{name} ×" for name in timed), title=f"times as fast as {BASELINE}, [least, greatest]")
    for name, values in result.items():
        cells = [*(values[key] for key in ("generation", "scoring", "update")), statistics.median(values["whole"])]
        peak = [f"{values['peak']:.2f}"] if peaks else []
        seconds.add_row(name, *(f"{cell:.3f}" for cell in cells), *peak)
        shown = (ratio(result, name, rounds=rounds) for rounds in timed.values())
        ratios.add_row(name, *(f"{median:.2f} [{least:.2f}, {most:.2f}]" for median, least, most in shown))
    console.print(seconds)
    console.print(ratios)
    if FLOOR in result:
        multiples = Table("arm", *(f"{name} ×" for name in timed), title="multiples of the floor, [least, greatest]")
        for name in result:
            shown = (ratio(result, FLOOR, name, rounds) for rounds in timed.values())
            multiples.add_row(name, *(f"{median:.2f} [{least:.2f}, {most:.2f}]" for median, least, most in shown))
        console.print(multiples)


def show_memory(console: Console, results: dict[str, dict[str, float]]) -> None:
    """A table for each setting: peak memory in GiB by arm, and as a share of TRL's."""
    for title, peaks in results.items():
        table = Table("arm", "peak GiB", "of TRL's", title=title)
        for name, peak in peaks.items():
            table.add_row(name, f"{peak:.2f}", f"{peak / peaks[BASELINE]:.2f}")
        console.print(table)
