"""
Why does a run not learn? The first cause of trouble in its log files, with the step, the evidence and the cure.

    trl-prorl why runs/a

Reads a run of `ProRLTrainer`, or one that `RunRecorder` has written. Exit code 1: a cause was found; 0: none was,
or there are too few rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from trl_prorl.cli.terminal import LORA_RATES, TRL_RATE
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.stability import ROUNDING, least_fall, noise
from trl_prorl.eval.run_folder.reading import load_runs
from trl_prorl.eval.run_folder.run import DEFAULT_MAX_COMPLETION_LENGTH, OWN_KL, RecordedRun
from trl_prorl.supported import LOSS_TYPES, UNGROUPED
from trl_prorl.text import visible_lines


SHORT, LONG = 10, 20  # steps of a moving average
MAX_ACCURACY = 0.9  # accuracy from which on a run has little left to learn
ALL_EQUAL = 0.95  # share of groups
TRUNCATED = 0.9  # share of completions
CLIPPED = 0.1  # share of tokens
IDLE = 1e-4  # the KL term of the loss per token, of which advantages are about 1
STRONG = 1e-3
HOLDS, HELD = 1e-2, 2e-3  # a KL term, and the KL in nats per token of a policy that it holds
RISEN = 1.5  # standard deviations of a step's reward, by which the best average of a run exceeds the first
ADAPTER = 0.5  # share of the parameters, up to which an adapter is trained


class Found(NamedTuple):
    """
    A sign of trouble.

    Attributes:
        step (`int`): The optimizer step at which it shows.
        evidence (`str`): The numbers.
    """

    step: int
    evidence: str


class Rule(NamedTuple):
    """A cause of trouble: its name, how to find it in a run, and its cure."""

    cause: str
    find: Callable[[RecordedRun], Found | None]
    cure: str


def average(run: RecordedRun, key: str, steps: int) -> pd.Series:
    """Return the moving average of a column by step; empty if it was not measured."""
    values = run.measured(key)
    return pd.Series(dtype=float) if values is None else values.rolling(steps).mean().dropna()


def unsolved(run: RecordedRun, values: pd.Series) -> pd.Series:
    """Leave out the steps at which the run solves its prompts."""
    accuracy = average(run, "accuracy", SHORT)
    solved = accuracy[accuracy >= MAX_ACCURACY].index
    return values.drop(values.index.intersection(solved))


def first(values: pd.Series, evidence: str) -> Found | None:
    """Return the first of some values, with `evidence` as the format of its number."""
    return None if values.empty else Found(int(values.index[0]), evidence.format(values.iloc[0]))


def above(column: str, limit: float, steps: int, evidence: str) -> Callable[[RecordedRun], Found | None]:
    """Return a rule: the moving average of a column reaches a limit."""

    def find(run: RecordedRun) -> Found | None:
        values = average(run, column, steps)
        return first(values[values >= limit], evidence)

    return find


def no_signal(run: RecordedRun) -> Found | None:
    if run.config.get("advantage_estimator") in UNGROUPED:  # equal rewards of a group give a gradient, too
        return None
    share = unsolved(run, average(run, "frac_reward_zero_std", LONG))
    return first(share[share >= ALL_EQUAL], "in {:.0%} of the groups all completions got the same reward")


def rate_too_high(run: RecordedRun) -> Found | None:
    clipped = average(run, "clip_region_mean", SHORT)
    if run.config.get("importance_sampling_level") == "sequence":  # GSPO's range of 3e-4 is there to clip many
        clipped = clipped[:0]
    sign = first(clipped[clipped >= CLIPPED], "{:.0%} of the tokens leave the clip range in an update")
    if sign or run.lowers_reward:
        return sign
    reward = average(run, "reward", LONG)  # the best of many short averages is luck
    if reward.empty:
        return None
    best = reward.cummax()
    fallen = reward[best - reward >= least_fall(run.measured("reward"), reward.iloc[0], best)]
    return first(fallen, f"the reward fell from {best.get(next(iter(fallen.index), None), 0.0):.2g} to {{:.2g}}")


def has_risen(run: RecordedRun) -> bool:
    """Return whether the reward has ever risen from its first steps by more than chance."""
    reward = average(run, "reward", LONG)
    return not reward.empty and reward.max() - reward.iloc[0] > RISEN * noise(run.measured("reward")) + ROUNDING


def rate_too_low(run: RecordedRun) -> Found | None:
    rates = run.measured("lr")  # that of a script's own optimizer is not the key's; one in a warm-up is lower
    rate = run.config.get("learning_rate")
    rate = max(TRL_RATE if rate is None else rate, 0.0 if rates is None else rates.max())
    trained = run.env.get("trainable_parameters")
    parameters = run.env.get("parameters")  # 0 of a model in parts, as in ZeRO-3
    if rate > TRL_RATE or not trained or not parameters or trained > ADAPTER * parameters:
        return None
    reward = average(run, "reward", LONG)
    return first(reward, f"LoRA learns nothing at a learning rate of {rate:g}; the reward is {{:.2g}}")


def kl_term(run: RecordedRun) -> pd.Series:
    """Return the moving average of the KL term as a mean over tokens, whatever the loss divides its sum by."""
    term = average(run, "kl_penalty", LONG)
    length = average(run, "completion_length", LONG)
    loss = LOSS_TYPES.get(run.config.get("loss_type"))
    if length.empty or loss is None:
        return term
    if loss.aggregation == "row_sum":
        return (term / length).dropna()
    if loss.aggregation == "length":
        max_length = run.config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH
        return (term * max_length / length).dropna()
    return term


def too_strong(run: RecordedRun) -> Found | None:
    penalty = kl_term(run)
    distance = average(run, OWN_KL, LONG)
    clamped = distance[(distance < HELD) & (penalty >= HOLDS)]
    if len(clamped):
        return first(clamped, "the KL term is 0.01 or more at a KL of {:.1g} nats per token: it holds the policy")
    if len(penalty) < LONG or has_risen(run) or run.lowers_reward:
        return None
    return first(penalty[penalty >= STRONG], "the KL term is {:.2g}, and the reward has not risen")


def idle(run: RecordedRun) -> Found | None:
    penalty = kl_term(run)
    if penalty.empty or run.measured(OWN_KL) is None or penalty.max() >= IDLE:
        return None
    return first(penalty[-1:], "the KL term never exceeded 1e-4; at the end it is {:.1g}")


RULES = (
    Rule(
        "NaN or infinity",
        above("nonfinite_skips", 1, 1, "{:.0f} updates skipped because of NaN or infinity"),
        "lower learning_rate; train in bf16 or fp32; read events.jsonl for the tensor",
    ),
    Rule(
        "completions are cut",
        above("truncated_fraction", TRUNCATED, SHORT, "{:.0%} of the completions are cut at max_completion_length"),
        "raise max_completion_length; check the end token and the chat template",
    ),
    Rule(
        "no signal",
        no_signal,
        "read completions and rewards (log_completions: true); easier or harder prompts, a higher temperature, more "
        "num_generations, or prompt_pool",
    ),
    Rule("learning rate too low", rate_too_low, f"set learning_rate: {LORA_RATES}"),
    Rule("learning rate too high", rate_too_high, "lower learning_rate or num_iterations; go on before the fall"),
    Rule(
        "KL too strong",
        too_strong,
        "lower beta (0 if the reward is exact; B: beta_old), raise kl_target if it is set, or reset the reference",
    ),
    Rule(
        "KL idle",
        idle,
        "raise beta (B: beta_old), lower kl_target if it is set, or leave the KL out: nothing holds the policy, and a "
        "reference costs time",
    ),
)


def find_causes(run: RecordedRun) -> list[tuple[Rule, Found]]:
    """
    Return the causes of trouble in a run, the earliest first; of one step, in the order of `RULES`.

    A policy that a high rate destroys also loses its end token and its signal, which shows up to `LONG - 1` steps
    earlier than the fall of the average reward.
    """
    signs = [(rule, rule.find(run)) for rule in RULES]
    ahead = {rate_too_high: LONG - 1}  # the average of LONG steps falls as soon as one of them does
    return sorted(
        [pair for pair in signs if pair[1] is not None],
        key=lambda pair: pair[1].step - ahead.get(pair[0].find, 0),
    )


def explain(run: RecordedRun) -> str:
    """Return the first cause of trouble in a run, in words."""
    causes = find_causes(run)
    last = int(run.metrics["step"].iloc[-1])
    rows = len(run.metrics)
    if not causes and rows < LONG:
        cure = "set logging_steps: 1" if rows < last else "train longer"
        return f"{run.name}: no verdict: {rows} rows in {last} steps, and rules need up to {LONG}; {cure}"
    if not causes:
        return f"{run.name}: no cause of trouble was found in {last} steps"
    rule, sign = causes[0]
    lines = [f"{run.name}: {rule.cause}, from step {sign.step} of {last}", f"  {sign.evidence}", f"  {rule.cure}"]
    if causes[1:]:
        lines.append("  later: " + ", ".join(f"{rule.cause} (step {sign.step})" for rule, sign in causes[1:]))
    return "\n".join(lines)


@command_lines.command
def main(argv=None) -> int:
    """Entry point."""
    args = command_lines.why(argv)
    runs, left_out = load_runs(args.runs)
    text = "\n".join([*map(explain, runs), *left_out])
    print(visible_lines(text))
    return int(any(map(find_causes, runs)))


if __name__ == "__main__":
    raise SystemExit(main())
