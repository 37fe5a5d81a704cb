"""
Convert the stored samples of an evaluated run to logs of Inspect (inspect.aisi.org.uk), one per model. Read the
completions in Inspect's viewer, or analyse them with its data frames.

    pip install inspect-ai
    python docs/examples/inspect_log.py --run runs/demo/variantA --out logs
    inspect view --log-dir logs
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSample, EvalSpec, write_eval_log
from inspect_ai.log import EvalMetric as Metric
from inspect_ai.log import EvalScore as Scored
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import CORRECT, INCORRECT, Score


VERIFIER = "verifier"


def answer_of(row) -> str | None:
    """Return the answer that the task extracted; samples of version 0.1.0 have none."""
    answer = getattr(row, "answer", None)
    return answer if isinstance(answer, str) else None  # pandas has NaN for nothing


def log_of(folder: Path) -> EvalLog:
    """Return the log of the samples in a folder `RUN/samples/<model>-<settings>`; an epoch is a sample of a prompt."""
    settings = json.loads((folder / "_settings.json").read_text())
    samples = pd.concat(map(pd.read_parquet, sorted(folder.glob("*.parquet"))), ignore_index=True)
    model = f"{folder.parents[1].name}/{folder.name.rpartition('-')[0]}"
    found = [
        EvalSample(
            id=row.prompt_id,
            epoch=row.sample + 1,
            input=row.prompt,
            target="",  # a verifier decides, and the row's answer is not stored
            output=ModelOutput.from_content(model, row.completion, "max_tokens" if row.truncated else "stop"),
            scores={VERIFIER: Score(value=CORRECT if row.correct else INCORRECT, answer=answer_of(row))},
            metadata={"tokens": len(row.ids), "level": row.level},
        )
        for row in samples.itertuples()
    ]
    accuracy = Metric(name="accuracy", value=float(samples["correct"].mean()))
    spec = EvalSpec(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        task=str(settings["task"][0]),
        dataset=EvalDataset(samples=samples["prompt_id"].nunique(), sample_ids=list(samples["prompt_id"].unique())),
        model=model,
        config=EvalConfig(epochs=int(samples.groupby("prompt_id").size().max())),
        metadata=settings,
    )
    scores = [Scored(name=VERIFIER, scorer=VERIFIER, metrics={"accuracy": accuracy})]
    results = EvalResults(total_samples=len(found), completed_samples=len(found), scores=scores)
    return EvalLog(status="success", eval=spec, results=results, samples=found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run folder that trl-prorl passk has evaluated")
    parser.add_argument("--out", type=Path, default=Path("logs"))
    args = parser.parse_args()
    folders = sorted(path.parent for path in args.run.glob("samples/*/_settings.json"))
    if not folders:
        raise SystemExit(f"error: --run {args.run} contains no samples: run trl-prorl passk --run {args.run}")
    for folder in folders:
        file = args.out / f"{args.run.name}-{folder.name}.eval"
        write_eval_log(log_of(folder), str(file))
        print(file)


if __name__ == "__main__":
    main()
