"""
Plot pass@k over training steps, and test whether it rises towards 1 at a constant rate.

    trl-prorl trajectory --run runs/demo/variantA --k 1 8

Reads the run's `passk.json`, which must contain checkpoints, prints the fit of 1 - (1 - p0) e^(-alpha t) and its test,
and writes `trajectory.png` into the run folder.
"""

import sys

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.trajectory import MIN_RESAMPLES, check_run, default_sizes, per_prompt_by_step
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.comparison import objective_notes
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.pages.trajectory import plot_trajectory, trajectory_statements, trajectory_table
from trl_prorl.eval.run_folder.reading import load_run


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.trajectory(argv)
    console = terminal()
    if args.resamples < MIN_RESAMPLES:
        raise InputError(f"--resamples {args.resamples}: at least {MIN_RESAMPLES} are needed for an interval")
    runs = [load_run(folder) for folder in args.runs]
    checks = []
    for run in runs:
        fitted = []
        refused = []
        for k in args.k or default_sizes(run):
            per_prompt_by_step(run, k)  # raises an error for a k that was not evaluated
            try:
                fitted.append(check_run(run, k, resamples=args.resamples))
            except InputError as error:  # no curve fits; another k may have a fit
                refused.append(error)
        if not fitted:
            raise refused[0]
        print_bullets(console, map(str, refused))
        checks.append(fitted)
    pairs = [(run, check) for run, fitted in zip(runs, checks, strict=True) for check in fitted]
    console.print(trajectory_table(pairs).to_rich())
    for run, fitted in zip(runs, checks, strict=True):
        for check in fitted:
            print_bullets(console, trajectory_statements(run, check))
        plot_trajectory(run, fitted, run.path / "trajectory.png")
        print(f"Wrote {run.path / 'trajectory.png'}.")
    print_bullets(console, objective_notes(runs))


if __name__ == "__main__":
    sys.exit(main())
