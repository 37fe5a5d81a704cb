"""
Measure drift from the starting model: `trl-prorl drift --run runs/demo/variantA --checkpoints all`.

On held-out prompts, at every token of the policy's own samples: KL(policy || starting model), exact over the whole
vocabulary; the share of positions with the same greedy token; both entropies. For the samples: length, reward,
accuracy. Writes `drift.json` and `drift.png` into the run folder. Samples are kept and shared with `passk`.
"""

import operator
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.statistics import ratio_interval
from trl_prorl.eval.pages.drift_curves import drift_panels, points_table
from trl_prorl.eval.pages.plotting import write_png
from trl_prorl.eval.pages.table import Measured, terminal
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.held_out import HeldOut, judges, sampling_options
from trl_prorl.eval.samples.models import Point, checkpoint_points
from trl_prorl.eval.samples.sampling import progress, prompt_ids
from trl_prorl.eval.samples.trainer_held_out import TrainerHeldOut
from trl_prorl.run.log_files import DRIFT_FILE
from trl_prorl.tasks.own import OwnTask
from trl_prorl.tasks.plugin import OWN


MEASURES = ("kl_to_base", "token_agreement", "entropy", "base_entropy")  # of each token


def token_drift(logits: torch.Tensor, base_logits: torch.Tensor, temperature: float = 1.0) -> tuple[torch.Tensor, ...]:
    r"""
    Return the [`MEASURES`] at every token, from logits of the policy and of base of shape (..., V), both divided by
    the temperature as in sampling. Each has shape (...): the agreement is 0 or 1, the others are in nats.

    \\( \mathrm{KL}(\pi\|\pi_0) = \sum_a \pi(a) (\log\pi(a) - \log\pi_0(a)) \\), exact, no estimate from the sampled
    token.
    """
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    base_logps = torch.log_softmax(base_logits.float() / temperature, dim=-1)
    probabilities = logps.exp()
    return (
        _expected(logps - base_logps, probabilities),
        (logits.argmax(-1) == base_logits.argmax(-1)).float(),
        -_expected(logps, probabilities),
        -_expected(base_logps, base_logps.exp()),
    )


def _expected(values: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the expectation over the vocabulary, the last axis. Without tokens of probability 0: 0 · −∞ is NaN."""
    return torch.where(probabilities > 0, probabilities * values, 0.0).sum(-1)


@torch.no_grad()
def measure_drift(held_out: HeldOut, point: Point, model, base_model, samples: int) -> dict:
    """
    Measure the drift of one model on the prompts of one task, with a number of samples per prompt: token means over
    all samples, a 95 % interval of the KL over prompts, and length, reward and accuracy of the samples.
    """
    drawn = held_out.samples(point, samples)
    device = next(model.parameters()).device
    questions = prompt_ids(
        held_out.processor or held_out.tokenizer, held_out.rows, held_out.sampling.chat_template_kwargs
    )
    temperature = held_out.sampling.temperature
    totals = []  # a row per prompt: sums of the measures over its tokens, and the number of tokens
    ids = [list(ids) for ids in drawn["ids"]]
    bar = progress(len(ids), f"{held_out.run_dir.name}: drift of {point.label}")
    for place in range(len(questions)):
        answers = ids[place * samples : (place + 1) * samples]
        padded = held_out.tokenizer.pad(
            {"input_ids": [questions[place] + answer for answer in answers]}, padding_side="right", return_tensors="pt"
        ).to(device)
        answer_width = padded["input_ids"].shape[1] - len(questions[place])
        logits = answer_logits(model, padded, answer_width)
        base_logits = logits if base_model is model else answer_logits(base_model, padded, answer_width)
        sums = np.zeros(len(MEASURES) + 1)
        for row, answer in enumerate(answers):  # row by row, because a vocabulary is large
            parts = token_drift(logits[row, : len(answer)], base_logits[row, : len(answer)], temperature)
            sums += [*(float(part.sum()) for part in parts), len(answer)]
        totals.append(sums)
        bar.update(samples)
    bar.close()
    sums = np.stack(totals)
    tokens = sums[:, -1]
    means = sums.sum(axis=0) / tokens.sum()
    return {
        **dict(zip(MEASURES, means, strict=False)),
        "interval": list(ratio_interval(sums[:, 0], tokens)),
        "mean_tokens": tokens.sum() / len(ids),
        **measure_rewards(held_out, drawn, samples),
    }


def measure_rewards(held_out: HeldOut, drawn: pd.DataFrame, samples: int) -> dict[str, float]:
    """Return the mean reward and the accuracy of the samples, as far as they are known."""
    measured = {}
    if not isinstance(held_out.task, OwnTask):  # which have no reward
        rows = [row for row in held_out.rows for _ in range(samples)]
        rewards = held_out.task.reward_many(list(drawn["completion"]), rows)
        measured["reward"] = sum(rewards) / len(rewards)
    if judges(held_out.task):
        measured["accuracy"] = float(drawn["correct"].mean())
    return measured


def answer_logits(model, padded, answer_width: int) -> torch.Tensor:
    """Return the logits that chose the answers: at the last question token and all answer tokens but the last."""
    output = model(
        input_ids=padded["input_ids"], attention_mask=padded["attention_mask"], logits_to_keep=answer_width + 1
    )
    return output.logits[:, :-1]


def measure_points(held_out: HeldOut, points: list[Point], samples: int) -> dict:
    """Measure models of a run; return the content of `drift.json`."""
    versions = held_out.versions()
    for point in points:  # first, so that no other model is in memory while sampling
        held_out.samples(point, samples)
    entries = []
    with held_out.scored(held_out.base) as base_model:
        for point in points:
            scored = nullcontext(base_model) if point is held_out.base else held_out.scored(point)
            with scored as model:
                entries.append({"step": point.step, **measure_drift(held_out, point, model, base_model, samples)})
    held_out.check_unchanged(versions)
    known = {"in_training": held_out.in_training} if held_out.in_training else {}
    return {**known, **versions, **held_out.settings(samples=samples), "points": entries}


def present(run_dir: Path, result: dict) -> Measured:
    """Write `drift.json` and `drift.png`, and return the result with its tables."""
    write_json(run_dir / DRIFT_FILE, result)
    write_png(drift_panels(result), run_dir / "drift.png")
    return Measured(result, [points_table(run_dir, result)])


def drift(
    trainer,
    rows,
    verifier: Callable | None = None,
    *,
    samples: int = 4,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    batch_size: int = 512,
    name: str = OWN,
) -> Measured:
    """
    Measure the KL of the trained model to the starting model on held-out prompts, and store it.

    Call it after training, because it draws random numbers.

    Args:
        trainer ([`ProRLTrainer`]): A trainer that has finished training, in a single process.
        rows (`datasets.Dataset`): Held-out rows with a `prompt` (chat messages or text) and the columns that
            `verifier` reads. Rows that equal an earlier one are left out.
        verifier (`Callable`, *optional*): `verifier(completion, row) -> bool`, as in [`evaluate`]; adds the accuracy
            of the samples.
        samples (`int`, *optional*, defaults to `4`): Samples per prompt.
        temperature (`float`, *optional*): Sampling temperature; by default the run's.
        max_new_tokens (`int`, *optional*): Maximum number of new tokens; by default the run's `max_completion_length`.
        seed (`int`, *optional*, defaults to `0`): Seed of the sampling.
        batch_size (`int`, *optional*, defaults to `512`): Sequences per call of `generate`.
        name (`str`, *optional*, defaults to `"own"`): Name of the data in tables and files.

    Returns:
        `dict`: The content of `drift.json` in the run folder; `print` and a notebook show it as its tables. `points`
            has one entry for the starting model and one for the trained model.

    Raises:
        [`InputError`]: `rows` have no prompts, or images; `verifier` fails on the first row; or the trainer has
            several processes, tools, environments or a `rollout_func`.

    Example:

    ```python
    >>> from trl_prorl import drift

    >>> result = drift(trainer, rows, task.verify)
    >>> start, trained = result["points"]
    >>> start["step"], trained["step"]
    (0, 4)
    ```
    """
    sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed, "batch_size": batch_size}
    held_out = TrainerHeldOut(trainer, rows, verifier, name, **sampling)
    points = [held_out.base, held_out.trained]
    return present(held_out.run_dir, measure_points(held_out, points, operator.index(samples)))


@command_lines.command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.drift(argv)
    for run_dir in args.runs:
        held_out = HeldOut(run_dir, args.split, args.prompts, **sampling_options(args))
        points = [held_out.base, *checkpoint_points(run_dir, args.checkpoints), held_out.trained]
        present(run_dir, measure_points(held_out, points, args.samples)).print(terminal())


if __name__ == "__main__":
    sys.exit(main())
