"""
A report on run folders: tables, two figures and what the numbers say.

    python -m eval.report --runs runs/demo/* --out runs/demo

Writes `report.md`, `summary.png` and `ref_cost.png`. Held-out numbers come from each run's `passk.json`, which
`python -m eval.passk` makes; without it those cells stay open.
"""

import argparse
import glob
import os
import shlex
import sys
from pathlib import Path

from rich.console import Console

from eval.plots import plot_ref_cost, plot_summary
from eval.runs import VARIANT_DESCRIPTIONS, InputError, Run, load_run, sort_runs
from eval.statements import caveats, comparison_statements, passk_command
from eval.tables import (
    DIFFERENT_OBJECTIVE,
    both_a_and_b,
    cost_table,
    learning_table,
    overview_table,
    seeds_table,
)


DESCRIBED_KEYS = (
    "beta",
    "beta_old",
    "beta_base",
    "kl_estimator",
    "ref_compute",
    "ref_reset_every",
    "ref_reset_mix",
    "optimizer_reset",
    "optimizer_reset_alpha",
)


def find_run_folders(patterns: list[str]) -> list[Path]:
    """
    The run folders among paths and glob patterns, each once, in the given order.

    A shell's `runs/demo/*` also names files and other folders, an earlier report for one; they are left out.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run folder remains.
    """
    found = {}
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches:
            raise InputError(f"--runs '{pattern}' matches nothing; give run folders or a glob of them")
        for match in matches:
            if (Path(match) / "metrics.jsonl").is_file():
                found.setdefault(Path(match).resolve(), Path(match))
    if not found:
        raise InputError(
            f"--runs {' '.join(patterns)}: no run folder among them; a run folder holds config.yaml, env.json and "
            "metrics.jsonl"
        )
    return list(found.values())


def common_parent(folders: list[Path]) -> Path:
    """The deepest folder that holds all run folders."""
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders]))


def load_runs(folders: list[Path]) -> list[Run]:
    """The runs in the order of the report, each named by its path below the common parent."""
    parent = common_parent(folders)
    return sort_runs([load_run(folder, folder.resolve().relative_to(parent).as_posix()) for folder in folders])


def arm_list(runs: list[Run]) -> list[str]:
    """What each arm is: its variant in words, its seed and the settings that set it apart, then what all arms share."""

    def described(run, keys):
        return ", ".join(f"`{key}: {run.config[key]}`" for key in keys if run.config.get(key))

    common = [key for key in DESCRIBED_KEYS if len({repr(run.config.get(key)) for run in runs}) == 1]
    lines = []
    for run in runs:
        seed = "seed not recorded" if run.seed is None else f"seed {run.seed}"
        description = VARIANT_DESCRIPTIONS.get(run.variant, "a variant this report does not know")
        settings = described(run, [key for key in DESCRIBED_KEYS if key not in common])
        lines.append(f"**{run.name}** ({run.variant}, {seed}): {description}. {settings}".rstrip())
    if described(runs[0], common):
        lines.append(f"All arms: {described(runs[0], common)}")
    return lines


def _shared(runs: list[Run], key: str) -> str:
    values = dict.fromkeys(str(run.config.get(key, "default")) for run in runs)
    return ", ".join(f"`{value}`" for value in values)


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def render_markdown(runs: list[Run], command: str) -> str:
    """
    The report as GitHub markdown; it links the two figures beside it.

    Args:
        runs (`list[Run]`): The runs, sorted.
        command (`str`): The command that makes this report again.
    """
    tables = [table for table in (learning_table(runs), seeds_table(runs), cost_table(runs)) if table]
    caption = [DIFFERENT_OBJECTIVE] if both_a_and_b(runs) else []
    sections = [
        f"# Prolonged GRPO: {len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        f"Model {_shared(runs, 'model_name_or_path')}, task {_shared(runs, 'task')}, level "
        f"{_shared(runs, 'task_level')}. Base means the policy as a run began.",
        "![Reward, KL, entropy and throughput over optimizer steps](summary.png)",
        *caption,
    ]
    for table in tables:
        sections += [f"## {table.title}", table.to_markdown()]
    sections += [
        "![Reference forward calls, time of a step by stage, reference share of time](ref_cost.png)",
        *caption,
        "## What the numbers say",
        _bullets(comparison_statements(runs) or ["Nothing to compare yet."]),
        "## Caveats",
        _bullets(caveats(runs)),
        "## What each arm is",
        _bullets(arm_list(runs)),
        "## How to reproduce",
        "`python recipes/grpo_variantA.py --config <run folder>/config.yaml --output_dir <new folder>` trains a run again, "
        "whatever its variant: its `config.yaml` decides. `env.json` holds versions, hardware and seed. Then:",
        f"```\n{evaluation_commands(runs)}\n{command}\n```",
    ]
    return "\n\n".join(sections) + "\n"


def evaluation_commands(runs: list[Run]) -> str:
    """The commands that evaluated the runs, one per setting; with the defaults for runs not evaluated yet."""
    by_setting = {}
    for run in runs:
        options = ""
        if run.passk:
            split, prompts, n, ks = (run.passk[key] for key in ("split", "prompts", "n", "k"))
            temperature, seed = run.passk["temperature"], run.passk["seed"]
            sampling = f"--temperature {temperature:g}" if temperature else "--greedy"
            options = (
                f" --split {split} --prompts {prompts} --n {n} --k {' '.join(map(str, ks))} {sampling} --seed {seed}"
            )
        by_setting.setdefault(options, []).append(run)
    return "\n".join(passk_command(group) + options for options, group in by_setting.items())


def main(argv=None) -> int:
    """Entry point; returns the exit code, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m eval.report", description="Report on run folders.")
    parser.add_argument("--runs", nargs="+", required=True, help="run folders or quoted globs of them")
    parser.add_argument("--out", type=Path, help="folder of the report (default: the runs' common parent)")
    args = parser.parse_args(argv)
    try:
        folders = find_run_folders(args.runs)
        runs = load_runs(folders)
        out = args.out or common_parent(folders)
        out.mkdir(parents=True, exist_ok=True)
        plot_summary(runs, out / "summary.png")
        plot_ref_cost(runs, out / "ref_cost.png")
        command = f"python -m eval.report --runs {' '.join(map(shlex.quote, args.runs))}"
        command += f" --out {shlex.quote(str(args.out))}" if args.out else ""
        (out / "report.md").write_text(render_markdown(runs, command))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    console.print(overview_table(runs).to_rich())
    for line in comparison_statements(runs):
        console.print(f"- {line}", markup=False, highlight=False)
    print(f"Wrote {out / 'report.md'}, summary.png and ref_cost.png.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
