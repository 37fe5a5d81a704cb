"""
Measure drift from the starting model: `trl-prorl drift --run runs/demo/variantA --checkpoints all`.

On held-out prompts, at every token of the policy's own samples: KL(policy || starting model), exact over the whole
vocabulary; the share of positions with the same greedy token; both entropies. For the samples: length, reward,
accuracy. `--others TASK` measures the same on other tasks (forgetting). Writes `drift.json` and `drift.png` into the
run folder. Samples are kept and shared with `passk`.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.progress import track

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE, ratio_interval
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.drift_curves import drift_picture, points_tables
from trl_prorl.eval.pages.measured import Measured
from trl_prorl.eval.pages.table import terminal
from trl_prorl.eval.run_folder.reading import read_evaluation, write_json, writing
from trl_prorl.eval.samples.models import Point, checkpoint_points
from trl_prorl.eval.samples.own_rows import OwnRows
from trl_prorl.eval.samples.run_samples import HeldOut, check_run_settings, held_out_tasks, judges
from trl_prorl.eval.samples.sampling import prompt_ids
from trl_prorl.eval.samples.trainer_held_out import TrainerHeldOut
from trl_prorl.run.log_files import DRIFT_FILE
from trl_prorl.tasks.plugin import OWN
from trl_prorl.text import visible


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


def measure_point(own: HeldOut, others: dict[str, HeldOut], point: Point, model, base_model, samples: int) -> dict:
    """Measure one model, an entry of `drift.json`: on the run's own task, and on other tasks."""
    entry = {"step": point.step, **measure_drift(own, point, model, base_model, samples)}
    of_others = {name: measure_drift(other, point, model, base_model, samples) for name, other in others.items()}
    return {**entry, "others": of_others} if others else entry


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
    for place in track(range(len(questions)), description=f"{held_out.run_dir.name}: drift of {point.label}"):
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
    found = {}
    if not isinstance(held_out.task, OwnRows):  # which have no reward
        rows = [row for row in held_out.rows for _ in range(samples)]
        rewards = held_out.task.reward_many(list(drawn["completion"]), rows)
        found["reward"] = sum(rewards) / len(rewards)
    if judges(held_out.task):
        found["accuracy"] = float(drawn["correct"].mean())
    return found


def answer_logits(model, padded, answer_width: int) -> torch.Tensor:
    """Return the logits that chose the answers: at the last question token and all answer tokens but the last."""
    output = model(
        input_ids=padded["input_ids"], attention_mask=padded["attention_mask"], logits_to_keep=answer_width + 1
    )
    return output.logits[:, :-1]


def measure_points(held_out: HeldOut, points: list[Point], samples: int, others: dict[str, HeldOut]) -> dict:
    """Measure models of a run; return the content of `drift.json`."""
    versions = held_out.versions()
    for point in points:  # first, so that no other model is in memory while sampling
        for one in (held_out, *others.values()):
            one.samples(point, samples)
    entries = []
    with held_out.scored(held_out.base) as base_model:
        for point in points:
            scored = nullcontext(base_model) if point is held_out.base else held_out.scored(point)
            with scored as model:
                entries.append(measure_point(held_out, others, point, model, base_model, samples))
    held_out.check_unchanged(versions)
    known = {"in_training": held_out.in_training} if held_out.in_training else {}
    return {
        **known,
        **versions,
        **held_out.settings(samples=samples),
        "points": entries,
    }


def measure(run_dir: Path, args) -> dict:
    """Measure a run at its start, checkpoints and end; return the content of `drift.json`."""
    held_out, *others = held_out_tasks(run_dir, args)
    others = dict(zip(args.others, others, strict=True))
    points = checkpoint_points(run_dir, held_out.config, args.checkpoints)
    points = [held_out.base, *points, held_out.trained]
    return measure_points(held_out, points, args.samples, others)


def with_earlier_points(earlier: dict, result: dict, path: Path) -> dict:
    """
    Return a result with the points of an earlier one, at `path`, that it has not. The trained model stays last. With
    other settings, other tasks or another model, it replaces the earlier one, and a line says so.
    """
    same = {**earlier, "points": None} == {**result, "points": None} and "weights" in result
    steps = {None, *(point["step"] for point in result["points"])}  # `None`: the trained model
    kept = [point for point in earlier["points"] if point["step"] not in steps]
    tasks = {frozenset(point.get("others", {})) for point in [*kept, *result["points"]]}
    if not kept:
        return result
    if not same or len(tasks) > 1:
        print(visible(f"{path} was measured with other settings, tasks or weights: it is rewritten."))
        return result
    *measured, trained = result["points"]
    return result | {"points": [*sorted([*kept, *measured], key=lambda point: point["step"]), trained]}


def present(run_dir: Path, result: dict) -> Measured:
    """
    Write `drift.json` and `drift.png`, and return the result with its tables. Points of an earlier `drift.json` with
    the same settings are kept.
    """
    path = run_dir / DRIFT_FILE
    earlier = None
    with writing(path):
        with suppress(InputError):  # one that cannot be read
            earlier = read_evaluation(run_dir, DRIFT_FILE)
        if earlier is not None:
            result = with_earlier_points(earlier, result, path)
        write_json(path, result)
        drift_picture(result).write_png(run_dir)
    tables = [table.to_rich() for table in points_tables(run_dir, result)]
    return Measured(result, tables, [NO_INTERVAL_NOTE] if result["prompts"] < MIN_PROMPTS else [])


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

    Call it after training, because it draws random numbers. It reuses the samples of [`evaluate`].

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
        [`InputError`]: `rows` have no prompts, or images; `verifier` fails on the first row; an option is out of
            range; or the trainer has several processes, tools, environments or a `rollout_func`.

    Example:

    ```python
    >>> from trl_prorl import drift

    >>> result = drift(trainer, rows, task.verify)
    >>> start, trained = result["points"]
    >>> start["step"], trained["step"]
    (0, 4)
    ```
    """
    whole = command_lines.whole_numbers(
        samples=samples, max_new_tokens=max_new_tokens, seed=seed, batch_size=batch_size
    )
    samples = whole.pop("samples")
    sampling = {"temperature": temperature, **whole}
    command_lines.check_sampling(None, **sampling, samples=samples)
    held_out = TrainerHeldOut(trainer, rows, verifier, name, **sampling)
    points = [held_out.base, held_out.trained]
    return present(held_out.run_dir, measure_points(held_out, points, samples, others={}))


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.drift(argv)
    for run_dir in args.runs:
        check_run_settings(run_dir, args.checkpoints, args.others, needs_verdicts=False)
    for run_dir in args.runs:
        present(run_dir, measure(run_dir, args)).print(terminal())


if __name__ == "__main__":
    sys.exit(main())
