"""`make study-status`: how many runs of each block, family and arm are in the tables."""

from rich.console import Console
from rich.table import Table

from study.estimate import clock, seconds_left
from study.matrix import Matrix
from study.tables import Tables


def status_table(matrix: Matrix, tables: Tables) -> Table:
    """A row for each arm of a block: finished of all runs, by family; a block's own row sums them up."""
    families = list(dict.fromkeys(name for block in matrix.blocks for name in block.families))
    table = Table("block", "arm", *families, "all", "collapsed")

    def row(block, name, arms, **style):
        runs = [run.key for run in block.runs if run.key.arm in arms]
        cells = []
        for family in (*families, None):
            mine = [key for key in runs if family in (None, key.family)]
            cells.append(f"{sum(key in tables.runs for key in mine)}/{len(mine)}" if mine else "")
        collapsed = sum(tables.runs[key]["collapsed"] for key in runs if key in tables.runs)
        table.add_row(block.name, name, *cells, str(collapsed) if collapsed else "", **style)

    for block in matrix.blocks:
        for arm in block.arms:
            row(block, arm, {arm})
        row(block, "all", set(block.arms), style="bold", end_section=True)
    return table


def print_status(matrix: Matrix, tables: Tables, jobs: int, console: Console) -> None:
    """The table, and one line with what is left."""
    console.print(status_table(matrix, tables))
    waiting = [run.key for run in matrix.runs if run.key not in tables.runs]
    total = len(matrix.runs)  # a run of two blocks counts once
    left = clock(seconds_left(waiting, tables.runs, jobs)) if waiting else "nothing"
    console.print(f"{total - len(waiting)} of {total} runs finished; left, {jobs} at a time: {left}")
