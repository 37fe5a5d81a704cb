"""
How far a run has moved from base: `python -m eval.drift --run runs/demo/A --checkpoints all`.

On held-out prompts, at every token of the policy's own samples: the KL divergence from the policy to base, exact over the
whole vocabulary; the share of places where both would say the same greedily; both entropies; and the length of the samples.
Writes `drift.json` and `drift.png` into the run folder. Samples are kept and shared with `eval.passk`.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.command import command
from eval.held_out import HeldOut
from eval.models import Point, checkpoint_points, load_point
from eval.passk import add_sampling_arguments, check_run_settings
from eval.runs import InputError, read_env
from eval.samples import write_json
from eval.sampling import prompt_ids
from eval.statistics import MIN_PROMPTS, NO_INTERVAL, NO_INTERVAL_NOTE, Estimate
from eval.tables import interval_cell
from trl_prorl.run.run_id import RUN_ID


class TokenDrift(NamedTuple):
    """Tensors of one shape, a value per token, in nats but for `agreement` (0 or 1)."""

    kl: torch.Tensor
    agreement: torch.Tensor
    entropy: torch.Tensor
    base_entropy: torch.Tensor


def token_drift(logits: torch.Tensor, base_logits: torch.Tensor, temperature: float = 1.0) -> TokenDrift:
    r"""
    What sets a policy apart from base at every token.

    \\( \mathrm{KL}(\pi\|\pi_0) = \sum_a \pi(a) (\log\pi(a) - \log\pi_0(a)) \\), exact, no estimate from the sampled token.

    Args:
        logits, base_logits (`torch.Tensor`): Shape (..., V).
        temperature (`float`, *optional*, defaults to `1.0`): Both are divided by it, as in sampling.

    Returns:
        [`TokenDrift`]: Of shape (...).
    """
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    base_logps = torch.log_softmax(base_logits.float() / temperature, dim=-1)
    # Tokens that cannot be sampled add nothing; with logits of −∞ the products would be NaN.
    probabilities, base_probabilities = logps.exp(), base_logps.exp()
    possible, base_possible = probabilities > 0, base_probabilities > 0

    def expected(values, probabilities, possible):
        return torch.where(possible, probabilities * values, 0.0).sum(-1)

    return TokenDrift(
        kl=expected(logps - base_logps, probabilities, possible),
        agreement=(logits.argmax(-1) == base_logits.argmax(-1)).float(),
        entropy=-expected(logps, probabilities, possible),
        base_entropy=-expected(base_logps, base_probabilities, base_possible),
    )


@torch.no_grad()
def drift_of(held_out: HeldOut, point: Point, base_model, samples: int) -> dict:
    """
    The drift of one model, as an entry of `drift.json`: token means over all samples, with a 95 % bootstrap interval of the KL
    over prompts.

    Args:
        held_out ([`~eval.held_out.HeldOut`]): Prompts and samples.
        point ([`~eval.models.Point`]): The model.
        base_model (`PreTrainedModel`): Base.
        samples (`int`): Samples per prompt.
    """
    drawn = held_out.samples(point, samples)
    model = (base_model if point.folder is None else load_point(point, held_out.config)).eval()
    device = next(model.parameters()).device
    questions = prompt_ids(held_out.tokenizer, held_out.rows, held_out.chat_template_kwargs)
    temperature = held_out.temperature or 1.0
    totals = []  # a row per prompt: sums over tokens, and the number of tokens
    for place in track(range(len(questions)), description=f"{held_out.run_dir.name}: drift of {point.label}"):
        answers = [list(ids) for ids in drawn["ids"][place * samples : (place + 1) * samples]]
        padded = held_out.tokenizer.pad(
            {"input_ids": [questions[place] + ids for ids in answers]}, padding_side="right", return_tensors="pt"
        ).to(device)
        answer_width = padded["input_ids"].shape[1] - len(questions[place])
        # The logits of the last question token and of every answer token but the last: those that chose the answers.
        both = [
            one(
                input_ids=padded["input_ids"],
                attention_mask=padded["attention_mask"],
                logits_to_keep=answer_width + 1,
            ).logits[:, :-1]
            for one in (model, base_model)
        ]
        sums = np.zeros(5)
        for row, ids in enumerate(answers):  # row by row, for a vocabulary is wide
            parts = token_drift(*(logits[row, : len(ids)] for logits in both), temperature)
            sums += [*(float(part.sum()) for part in parts), len(ids)]
        totals.append(sums)
    sums = np.stack(totals)
    kl, agreement, entropy, base_entropy = sums[:, :4].sum(0) / sums[:, 4].sum()
    return {
        "step": point.step,
        "kl_to_base": kl,
        "interval": list(bootstrap_ratio(sums[:, 0], sums[:, 4])),
        "token_agreement": agreement,
        "entropy": entropy,
        "base_entropy": base_entropy,
        "mean_tokens": sums[:, 4].sum() / (len(questions) * samples),
    }


def bootstrap_ratio(sums: np.ndarray, tokens: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """95 % percentile bootstrap over prompts of sums per token, both of shape (P,): prompts are drawn, long ones count more.

    NaN with fewer than 20 prompts, as in [`~eval.statistics.bootstrap_interval`].
    """
    if len(sums) < MIN_PROMPTS:
        return NO_INTERVAL
    drawn = np.random.default_rng(0).integers(len(sums), size=(resamples, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / tokens[drawn].sum(1), [2.5, 97.5])
    return float(low), float(high)


def measure(run_dir: Path, args) -> dict:
    """The content of `drift.json`."""
    held_out = HeldOut(
        run_dir,
        args.split,
        args.prompts,
        temperature=args.temperature,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        batch_size=args.batch_size,
    )
    points = (
        [held_out.base, *checkpoint_points(run_dir, held_out.config, args.checkpoints)] if args.checkpoints else []
    )
    points = [*(points or [held_out.base]), held_out.trained]
    base_model = load_point(held_out.base, held_out.config).eval()
    run_id = read_env(run_dir).get(RUN_ID)
    return {
        **({RUN_ID: run_id} if run_id else {}),
        "prompts": len(held_out.rows),
        "samples": args.samples,
        "split": held_out.split,
        "task": held_out.name.task,
        "level": held_out.name.level,
        "temperature": held_out.temperature,
        "points": [drift_of(held_out, point, base_model, args.samples) for point in points],
    }


def drift_table(run_dir: Path, result: dict) -> Table:
    """A row per model."""
    table = Table(
        "step", "KL to base (nats/token)", "same greedy token", "entropy", "tokens", title=f"Drift of {run_dir}"
    )
    for point in result["points"]:
        table.add_row(
            "end" if point["step"] is None else str(point["step"]),
            interval_cell(Estimate(point["kl_to_base"], *point["interval"]), ".4f"),
            f"{100 * point['token_agreement']:.1f} %",
            f"{point['entropy']:.3f}",
            f"{point['mean_tokens']:.1f}",
        )
    return table


def plot_drift(result: dict, path: Path) -> None:
    """KL, agreement, entropy and length over steps, as a PNG."""
    points = [point for point in result["points"] if point["step"] is not None]
    steps = [point["step"] for point in points]
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = (
        ("kl_to_base", "KL to base (nats per token)"),
        ("token_agreement", "same greedy token as base (share)"),
        ("entropy", "entropy (nats per token)"),
        ("mean_tokens", "tokens of a sample"),
    )
    for axes, (key, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.plot(steps, [point[key] for point in points], marker="o", color="#0072B2")
        if key == "kl_to_base":
            low, high = zip(*(point["interval"] for point in points), strict=True)
            axes.fill_between(steps, low, high, alpha=0.25, color="#0072B2")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("optimizer step")
        axes.grid(alpha=0.2)
    figure.savefig(path, dpi=110)


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m eval.drift", description="How far runs have moved from base.")
    add_sampling_arguments(parser)
    parser.add_argument("--samples", type=int, default=4, help="samples per prompt")
    args = parser.parse_args(argv)
    args.others = []
    return args


@command
def main(argv=None) -> None:
    """Entry point."""
    args = parse_args(argv)
    for option, least in (("prompts", 2), ("samples", 1), ("batch_size", 1)):
        if getattr(args, option) < least:
            raise InputError(f"--{option.replace('_', '-')} {getattr(args, option)} must be at least {least}")
    if args.temperature is not None and args.temperature <= 0:
        raise InputError(f"--temperature {args.temperature:g} must be above 0: drift is measured on samples")
    for run_dir in args.run:
        check_run_settings(run_dir, args)
    for run_dir in args.run:
        result = measure(run_dir, args)
        write_json(run_dir / "drift.json", result)
        plot_drift(result, run_dir / "drift.png")
        Console().print(drift_table(run_dir, result))
        if result["prompts"] < MIN_PROMPTS:
            Console().print(NO_INTERVAL_NOTE)


if __name__ == "__main__":
    sys.exit(main())
