"""
pass@k of a run, base against trained, on the same held-out prompts of its task.

    python -m eval.passk --run runs/demo/A --run runs/demo/B --prompts 128 --n 16 --k 1 4 8
    python -m eval.passk --run runs/demo/A --checkpoints all --others parity@2 sorting

Writes `passk.json` into each run folder, and the samples beside it (`samples/`, parquet): an evaluation that was stopped
goes on, and none is drawn twice. With the settings of a `passk.json` that is there, it is completed. Base is the policy as
the run began; runs that lie side by side share its samples.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eval.command import command
from eval.held_out import HeldOut, TaskName, check_run
from eval.models import checkpoint_points, last_step
from eval.passk_merge import PASSK_FILE, completed, earlier_result
from eval.runs import InputError, read_env
from eval.samples import write_json
from eval.statistics import (
    MIN_PROMPTS,
    NO_INTERVAL_NOTE,
    Estimate,
    bootstrap_interval,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
    summarise_counts,
)
from eval.tables import interval_cell
from trl_prorl.run.run_id import RUN_ID
from trl_prorl.shown import visible


MOST_SAMPLES = 256
SIDES = ("base", "trained")


def summarise(correct: list[list[bool]], ks: list[int]) -> dict:
    """
    [`~eval.statistics.summarise_counts`] of verdicts.

    Args:
        correct (`list[list[bool]]`): Shape (P, n).
        ks (`list[int]`): Sizes of the draw, each from 1 to n.
    """
    return summarise_counts([sum(samples) for samples in correct], len(correct[0]), ks)


def verdicts(samples: pd.DataFrame) -> list[list[bool]]:
    """Samples of P prompts with n each, prompt by prompt, as booleans of shape (P, n)."""
    prompts = samples["prompt_id"].nunique()
    return samples["correct"].to_numpy(dtype=bool).reshape(prompts, -1).tolist()


def summarise_samples(samples: pd.DataFrame, ks: list[int]) -> dict:
    """[`summarise`], and the mean length in tokens and the share of samples that were cut."""
    return {
        **summarise(verdicts(samples), ks),
        "mean_tokens": float(samples["ids"].map(len).mean()),
        "truncated": float(samples["truncated"].mean()),
    }


def by_task_and_level(sides: dict[str, pd.DataFrame], ks: list[int]) -> list[dict]:
    """pass@k of every task and level among the prompts, where there is more than one and each has at least two prompts."""
    groups = list(dict.fromkeys(zip(sides["base"]["task"], sides["base"]["level"], strict=True)))
    result = []
    for task, level in groups if len(groups) > 1 else []:
        parts = {
            side: samples[(samples["task"] == task) & (samples["level"] == level)] for side, samples in sides.items()
        }
        prompts = int(parts["base"]["prompt_id"].nunique())
        if prompts >= 2:
            summaries = {side: summarise(verdicts(part), ks) for side, part in parts.items()}
            result.append({"task": task, "level": as_plain(level), "prompts": prompts, **summaries})
    return result


def as_plain(level):
    return None if level is None or pd.isna(level) else int(level)


def greedy_side(samples: pd.DataFrame) -> dict:
    """Accuracy of greedy decoding with its interval over prompts, and the verdict of every prompt."""
    correct = [int(one) for one in samples["correct"]]
    return {
        "accuracy": float(np.mean(correct)),
        "interval": list(bootstrap_interval(correct)),
        "correct": correct,
    }


def gain(result: dict, k: int) -> Estimate:
    """pass@k, trained less base, with its paired 95 % interval over prompts."""
    counts = [result[side]["correct"] for side in ("trained", "base")]
    return paired_bootstrap_difference(*(pass_at_k_per_prompt(count, result["n"], k) for count in counts))


def settings_of(held_out: HeldOut, n: int) -> dict:
    """What an evaluation with `n` samples a prompt is of, as `passk.json` says it."""
    return {
        "split": held_out.split,
        "prompts": len(held_out.rows),
        "n": n,
        "temperature": held_out.temperature,
        "max_new_tokens": held_out.max_new_tokens,
        "seed": held_out.seed,
        "task": held_out.name.task,
        "level": held_out.name.level,
        "prompt_ids": held_out.prompt_ids,
    }


def base_and_trained(held_out: HeldOut, args) -> tuple[dict, dict[str, pd.DataFrame]]:
    """What `passk.json` says of one task, and the samples of both sides."""
    sides = {"base": held_out.samples(held_out.base, args.n), "trained": held_out.samples(held_out.trained, args.n)}
    result = {
        **settings_of(held_out, args.n),
        "k": args.k,
        **{side: summarise_samples(samples, args.k) for side, samples in sides.items()},
    }
    result["gain"] = {f"pass@{k}": list(gain(result, k)) for k in args.k}
    if held_out.temperature > 0 and args.with_greedy:
        points = {"base": held_out.base, "trained": held_out.trained}
        result["greedy"] = {
            side: greedy_side(held_out.samples(point, 1, temperature=0.0)) for side, point in points.items()
        }
        correct = [result["greedy"][side]["correct"] for side in ("trained", "base")]
        result["greedy"]["gain"] = list(paired_bootstrap_difference(*correct))
    return result, sides


def earlier_of(held_out: HeldOut, args) -> dict | None:
    """The run's earlier result that this evaluation completes, if there is one; see [`earlier_result`]."""
    if args.replace:
        return None
    asked = settings_of(held_out, args.n)
    points = checkpoint_points(held_out.run_dir, held_out.config, args.checkpoints) if args.checkpoints else []
    return earlier_result(held_out.run_dir, asked, [point.step for point in points], args.others, args.with_greedy)


def announcement(held_outs: list[HeldOut], args) -> str:
    """What an evaluation is about to sample: models, prompts, samples of each, and how many of those are not on disk yet."""
    held_out, *others = held_outs
    points = [held_out.base, held_out.trained]
    if args.checkpoints:
        points += checkpoint_points(held_out.run_dir, held_out.config, args.checkpoints)
    draws = [(held_out, point, args.n, None) for point in points]
    draws += [(other, point, args.n, None) for other in others for point in (other.base, other.trained)]
    if held_out.temperature > 0 and args.with_greedy:
        draws += [(each, point, 1, 0.0) for each in held_outs for point in (each.base, each.trained)]
    total = sum(len(each.rows) * n for each, _, n, _ in draws)
    missing = sum(each.count_missing(point, n, temperature=t) for each, point, n, t in draws)
    more = f", and {len(others)} other task{'s' * (len(others) > 1)} on base and trained" if others else ""
    greedy = ", and greedy" if held_out.temperature > 0 and args.with_greedy else ""
    kept = f"; {total - missing} are on disk" if missing < total else ""
    return visible(
        f"{held_out.run_dir}: {len(points)} models × {len(held_out.rows)} prompts × {args.n} samples{greedy}{more}: {total} samples, "
        f"at most {held_out.max_new_tokens} tokens each{kept}."
    )


def evaluate_run(held_outs: list[HeldOut], args, earlier: dict | None = None) -> dict:
    """
    The content of `passk.json` for one run.

    Args:
        held_outs (`list[HeldOut]`): As [`held_outs`] gives them.
        args (`argparse.Namespace`): The settings, as [`parse_args`] gives them.
        earlier (`dict`, *optional*): The result of the same evaluation that this one completes.
    """
    held_out, *others = held_outs
    if earlier:
        args = argparse.Namespace(**{**vars(args), "k": sorted({*args.k, *earlier["k"]})})
    result, sides = base_and_trained(held_out, args)
    if run_id := read_env(held_out.run_dir).get(RUN_ID):
        result[RUN_ID] = run_id
    result["step"] = held_out.trained.step
    result["steps_on_record"] = last_step(held_out.run_dir)  # more, where the best checkpoint was kept
    if groups := by_task_and_level(sides, args.k):
        result["by"] = groups
    if args.checkpoints:
        points = checkpoint_points(held_out.run_dir, held_out.config, args.checkpoints)
        result["checkpoints"] = [
            {"step": point.step, **summarise_samples(held_out.samples(point, args.n), args.k)} for point in points
        ]
        if held_out.trained.step is not None:
            result["checkpoints"].append({"step": held_out.trained.step, **result["trained"]})
    if others:
        result["others"] = {
            text: base_and_trained(other, args)[0] for text, other in zip(args.others, others, strict=True)
        }
    if earlier:
        whole = completed(earlier, result)
        if whole is None:
            print(
                f"{held_out.run_dir / PASSK_FILE} was of other weights or other verdicts: it is written anew, with what is asked now."
            )
        return whole or result
    return result


def held_outs(run_dir: Path, args) -> list[HeldOut]:
    """The run on its own task, then on the others that were asked for."""
    settings = {
        "temperature": 0.0 if args.greedy else args.temperature,
        "max_new_tokens": args.max_new_tokens,
        "seed": args.seed,
        "batch_size": args.batch_size,
    }
    names = [None, *map(TaskName.parse, args.others)]
    return [HeldOut(run_dir, args.split, args.prompts, name=name, **settings) for name in names]


def result_table(run_dir: Path, result: dict) -> Table:
    """Base against trained, a row per k, with 95 % bootstrap intervals over prompts."""
    title = escape(
        visible(
            f"pass@k of {run_dir}: {result['task']}, {result['split']} split, {result['prompts']} prompts, "
            f"n = {result['n']}, temperature {result['temperature']:g}"
        )
    )
    table = side_by_side("k", title)
    for k in result["k"]:
        add_row(table, str(k), result, k)
    if "greedy" in result:
        cells = [
            with_interval(result["greedy"][side]["accuracy"], result["greedy"][side]["interval"]) for side in SIDES
        ]
        value, *interval = result["greedy"]["gain"]
        table.add_row("greedy", *cells, with_interval(value, interval, sign="+"))
    return table


def parts_table(result: dict) -> Table | None:
    """The smallest k of every task and level among the prompts, and of the tasks that were not trained; `None` if neither."""
    k = result["k"][0]
    table = side_by_side("task", f"pass@{k} by task")
    for part in result.get("by", []):
        add_row(table, escape(visible(f"{part['task']}@{part['level']}")), {**part, "n": result["n"]}, k, digits=2)
    for name, other in result.get("others", {}).items():
        add_row(table, f"{escape(visible(name))},\nnot trained", other, k, digits=2)
    return table if table.row_count else None


def side_by_side(what: str, title: str) -> Table:
    table = Table(title=title, show_edge=False, pad_edge=False)  # to fit 80 columns
    table.add_column(what, justify="right", overflow="fold")
    for column in (*SIDES, "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def add_row(table: Table, name: str, result: dict, k: int, digits: int = 3) -> None:
    cells = [with_interval(result[side][f"pass@{k}"], result[side][f"interval@{k}"], digits) for side in SIDES]
    value, *interval = gain(result, k)
    table.add_row(name, *cells, with_interval(value, interval, digits, sign="+"))


def with_interval(value: float, interval: list[float], digits: int = 3, sign: str = "") -> str:
    return interval_cell(Estimate(value, *interval), f"{sign}.{digits}f")


def checkpoint_table(result: dict) -> Table:
    """pass@k of base and every checkpoint, a row each."""
    table = Table("step", *(f"pass@{k}" for k in result["k"]), "tokens", title="pass@k over training steps")
    for point in [{"step": 0, **result["base"]}, *result["checkpoints"]]:
        cells = [with_interval(point[f"pass@{k}"], point[f"interval@{k}"]) for k in result["k"]]
        table.add_row(str(point["step"]), *cells, f"{point['mean_tokens']:.0f}")
    return table


def check_settings(args) -> None:
    """
    Refuse settings that cannot be measured, before anything is loaded.

    Raises:
        InputError: Naming the option, its value and the cure.
    """
    if not 1 <= args.n <= MOST_SAMPLES:
        raise InputError(f"--n {args.n}: at least 1 sample per prompt is needed, and at most {MOST_SAMPLES}")
    if args.greedy and args.n > 1:
        raise InputError(f"--n {args.n} with --greedy: all samples of a prompt would be the same; leave out --n")
    if args.prompts < 2:
        raise InputError(f"--prompts {args.prompts}: at least 2 prompts are needed, and {MIN_PROMPTS} for an interval")
    for k in args.k:
        if not 1 <= k <= args.n:
            raise InputError(f"--k {k} must lie between 1 and --n {args.n}; draw more samples or lower k")
    if args.temperature is not None and args.temperature <= 0:
        raise InputError(f"--temperature {args.temperature:g} must be above 0; use --greedy for greedy decoding")
    for option in ("batch_size", "max_new_tokens"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise InputError(f"--{option.replace('_', '-')} {value} must be at least 1")


def check_run_settings(run_dir: Path, args) -> None:
    """Refuse what a run cannot be asked, before anything is loaded."""
    config = check_run(run_dir)
    for name in (TaskName.of_run(config), *map(TaskName.parse, args.others)):
        name.make()
    if args.checkpoints:
        checkpoint_points(run_dir, config, args.checkpoints)


def parse_args(argv=None) -> argparse.Namespace:
    """The command line, with its defaults filled in."""
    parser = argparse.ArgumentParser(prog="python -m eval.passk", description="pass@k of runs, base against trained.")
    add_sampling_arguments(parser)
    parser.add_argument("--n", type=int, help=f"samples per prompt, up to {MOST_SAMPLES} (default 16, greedy 1)")
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default those of 1 4 8 up to n)")
    parser.add_argument("--greedy", action="store_true", help="decode greedily only, one sample per prompt")
    parser.add_argument(
        "--no-greedy",
        dest="with_greedy",
        action="store_false",
        help="leave out the greedy decoding beside the samples",
    )
    parser.add_argument(
        "--others",
        nargs="+",
        default=[],
        metavar="NAME[@LEVEL][=PATH]",
        help="tasks that were not trained (forgetting)",
    )
    parser.add_argument(
        "--replace", action="store_true", help="write passk.json anew, even if it holds more than is asked now"
    )
    args = parser.parse_args(argv)
    if args.n is None:
        args.n = 1 if args.greedy else 16
    if args.k is None:
        args.k = [k for k in (1, 4, 8) if k <= args.n]
    return args


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every evaluation by sampling has."""
    parser.add_argument("--run", action="append", required=True, type=Path, help="run folder; may be repeated")
    parser.add_argument("--split", default="test", help="split of the run's task")
    parser.add_argument("--prompts", type=int, default=128, help="number of prompts")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: the run's)")
    parser.add_argument(
        "--max-new-tokens", type=int, help="tokens after which a completion is cut (default: the run's)"
    )
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--checkpoints", nargs="+", default=[], metavar="STEP", help="steps of checkpoints, or all")


@command
def main(argv=None) -> None:
    """Entry point."""
    args = parse_args(argv)
    check_settings(args)
    for run_dir in args.run:
        check_run_settings(run_dir, args)
    evaluations = [(run_dir, held_outs(run_dir, args)) for run_dir in args.run]
    earlier = [
        earlier_of(its[0], args) for _, its in evaluations
    ]  # refused before a neighbour's samples are taken over
    for _, of_run in evaluations:
        print(announcement(of_run, args), flush=True)
    for (run_dir, its), before in zip(evaluations, earlier, strict=True):
        result = evaluate_run(its, args, before)
        write_json(run_dir / PASSK_FILE, result)
        console = Console()
        console.print(result_table(run_dir, result))
        if (parts := parts_table(result)) is not None:
            console.print("", parts)
        if "checkpoints" in result:
            console.print("", checkpoint_table(result))
        parts = [result, *result.get("by", []), *result.get("others", {}).values()]
        if any(part["prompts"] < MIN_PROMPTS for part in parts):
            console.print(NO_INTERVAL_NOTE)


if __name__ == "__main__":
    sys.exit(main())
