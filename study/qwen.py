"""
`python -m study.qwen RUN`: keeps what the page of the Qwen needs of a run, in study/tables, and writes its picture.

Without RUN it writes the picture from the tables, and prints the page's table. No question and no text of the data set
is kept: a verdict has a hash of its question alone.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from study.tables import FOLDER
from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    bootstrap_interval,
    detectable_difference,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
)
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.table import interval_cell
from trl_prorl.interrupt import NOTHING_CHANGED
from trl_prorl.record.run_files import METRICS_FILE


STEPS = FOLDER / "qwen_steps.csv"  # a row for each optimizer step of an arm
VERDICTS = FOLDER / "qwen_verdicts.csv"  # a row for each completion of the evaluation
PICTURE = Path("study", "pictures", "qwen_curve.png")
STEP_COLUMNS = (
    "step",
    "reward",
    "frac_reward_zero_std",
    "truncated_fraction",
    "completion_length",
    "entropy",
    "kl_ref",
    "beta",
    "rows_skipped",
    "time_rollout",
    "time_update",
    "time_step",
)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # of the arms, in the order of the tables


def base_of(arm: str) -> str:
    """Return the name, among the models, of the base as it was evaluated beside an arm: with its precision."""
    return f"base of {arm}"


def read_steps(run: Path) -> pd.DataFrame:
    """
    Return the steps of a run, with the columns `arm` and `STEP_COLUMNS`; times are seconds.

    Raises:
        InputError: The folder holds no run.
    """
    file = run / METRICS_FILE
    if not file.is_file():
        raise InputError(f"RUN={run}: the folder has no {file.name}; give the folder of a run")
    rows = pd.read_json(file, lines=True)
    steps = rows.reindex(columns=list(STEP_COLUMNS))
    steps.insert(0, "arm", run.name)
    return steps


def read_verdicts(run: Path) -> pd.DataFrame:
    """
    Return the verdicts on the completions of a run's evaluation, with the columns `model`, `decoding`, `prompt`,
    `sample`, `correct`, `truncated` and `tokens`. A greedy completion is sample 0. Questions stand in the order of
    `trl-prorl passk`, so that a bootstrap over them draws the same ones.
    """
    result = run / "passk.json"
    if not result.is_file():
        raise InputError(f"RUN={run}: the run was not evaluated; run `trl-prorl passk --run {run}` first")
    prompts = json.loads(result.read_text())["prompt_ids"]
    frames = []
    seen: dict[tuple[str, str], Path] = {}
    for folder in sorted((run / "samples").glob("*-*")):
        settings = pd.read_json(folder / "_settings.json", typ="series")
        samples = pd.concat([pd.read_parquet(file) for file in folder.glob("*.parquet")])
        samples = samples.set_index("prompt_id").loc[prompts].reset_index()
        side = folder.name.split("-")[0]
        frame = samples[["prompt_id", "sample", "correct", "truncated"]].rename(columns={"prompt_id": "prompt"})
        frame["tokens"] = samples["ids"].map(len)
        decoding = "sampled" if settings["temperature"] else "greedy"
        other = seen.setdefault((side, decoding), folder)
        if other != folder:
            raise InputError(f"RUN={run}: {other.name} and {folder.name} are both {side}, {decoding}; move one away")
        frame.insert(0, "decoding", decoding)
        frame.insert(0, "model", base_of(run.name) if side == "base" else run.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def scores(verdicts: pd.DataFrame) -> pd.DataFrame:
    """
    Return what the page says of each model and way of decoding: pass@1 with its interval over questions, pass@n of
    n samples, the share of right completions among those that were not cut, the share that was cut, and mean tokens.
    """
    rows = []
    for (model, decoding), group in verdicts.groupby(["model", "decoding"], sort=False):
        counts = group.groupby("prompt", sort=False)["correct"].sum()
        n = int(group["sample"].nunique())
        per_prompt = pass_at_k_per_prompt(counts, n, 1)
        low, high = bootstrap_interval(per_prompt)
        whole = group[~group["truncated"].astype(bool)]
        rows.append(
            {
                "model": model,
                "decoding": decoding,
                "questions": len(counts),
                "n": n,
                "pass@1": per_prompt.mean(),
                "low": low,
                "high": high,
                "pass@n": pass_at_k_per_prompt(counts, n, n).mean(),
                "right of whole": whole["correct"].mean(),
                "truncated": group["truncated"].mean(),
                "tokens": group["tokens"].mean(),
            }
        )
    return pd.DataFrame(rows)


def gain(verdicts: pd.DataFrame, arm: str, decoding: str) -> Estimate:
    """Return an arm's pass@1 less that of its base, on the same questions, with its interval over questions."""
    chosen = verdicts[verdicts["decoding"] == decoding]
    means = chosen.groupby(["model", "prompt"])["correct"].mean().unstack("model").loc[chosen["prompt"].unique()]
    return paired_bootstrap_difference(means[arm], means[base_of(arm)])


def draw_curve(steps: pd.DataFrame, path: Path) -> None:
    """Draw reward and share of truncated completions of each batch, over steps, a line for each arm."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (arm, rows), colour in zip(steps.groupby("arm", sort=False), COLOURS, strict=False):
        batches = rows[rows["time_rollout"] > 0]  # the others use a batch again
        for axes, column in ((left, "reward"), (right, "truncated_fraction")):
            mean = batches[column].rolling(4, min_periods=1).mean()
            axes.plot(batches["step"], batches[column], "o", alpha=0.35, color=colour)
            axes.plot(batches["step"], mean, color=colour, label=f"{arm}: mean of the last four batches")
    left.set(title="Right completions of a batch", xlabel="optimizer step", ylabel="share", ylim=(0, 1))
    right.set(title="Completions cut at 200 tokens", xlabel="optimizer step", ylabel="share", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.2)
    left.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def replace_rows(path: Path, column: str, new: pd.DataFrame) -> None:
    """Write rows into a table, in the place of those of the same arm or model."""
    kept = pd.DataFrame(columns=new.columns)
    if path.is_file():
        kept = pd.read_csv(path)
        kept = kept[~kept[column].isin(new[column])]
    table = new if kept.empty else pd.concat([kept, new])
    table.to_csv(path, index=False, float_format="%.6g")


def keep_run(root: Path, run: Path) -> None:
    """Keep a run's steps and, of its evaluation, the verdicts, in the tables."""
    replace_rows(root / STEPS, "arm", read_steps(run))
    replace_rows(root / VERDICTS, "model", read_verdicts(run))


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m study.qwen", description=__doc__.strip().split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="the folder of an evaluated run")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout (default: the working directory)")
    args = parser.parse_args(argv)
    if args.run is not None:
        keep_run(args.root, args.run)
    steps = pd.read_csv(args.root / STEPS)
    verdicts = pd.read_csv(args.root / VERDICTS)
    draw_curve(steps, args.root / PICTURE)
    print(scores(verdicts).to_string(index=False, float_format="%.3f"))
    evaluated = [arm for arm in steps["arm"].unique() if arm in set(verdicts["model"])]
    for arm in evaluated:
        for decoding in verdicts["decoding"].unique():
            found = gain(verdicts, arm, decoding)
            least = detectable_difference(found)
            print(f"{arm} less its base, {decoding}: {interval_cell(found, '+.3f')}, detectable {least:.3f}")


if __name__ == "__main__":
    sys.exit(command(main, kept=NOTHING_CHANGED)(None))
