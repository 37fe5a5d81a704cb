"""
Block `smollm2b` of the third protocol, from the tables: the pretrained model by gold', which asks of a right text that
it is more than the demanded words. `python -m study.smollm2b` prints it.
"""

import json
from pathlib import Path

import pandas as pd

from study.matrix import BASE_ARM, Block, RunKey, read_matrix
from study.registered import over_bases
from study.tables import Tables, read_tables
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages.table import interval_cell
from trl_prorl.tasks.instructions import tokens


BLOCK = "smollm2b"
PLAIN = "plain"
CONTROL = "control_target0.066"
KL_TARGET = 0.066
BY_KL = "plain, stopped by KL"
BY_SENSE = "plain, stopped by gold'"
LEAST_WORDS = 6
AHEAD = 0.08  # of gold', the control of plain, by the prediction
SCORES = ("gold", "gold, greedy", "gold'", "gold', greedy")


def has_sense(asked: str, text: str, right: bool) -> bool:
    """
    Return whether a text counts for gold': it is right, has at least six words, and says more than the demanded words:
    one of its words is not in its prompt.
    """
    words = tokens(text)
    says_more = not set(words) <= set(tokens(asked))
    return bool(right) and len(words) >= LEAST_WORDS and says_more


def texts_of(tables: Tables, key: RunKey) -> pd.DataFrame:
    """Return the texts of a run, or of a base, each with its verdict by gold', `sense`."""
    texts = tables.texts.loc[[key]].reset_index(drop=True)
    rows = zip(texts["asked"], texts["text"], texts["right"], strict=True)
    return texts.assign(sense=[has_sense(json.loads(asked), json.loads(text), right) for asked, text, right in rows])


def scores_at(texts: pd.DataFrame, step: int) -> dict[str, float]:
    """Return the four scores on the test prompts of the model after a step."""
    there = texts[(texts["step"] == step) & (texts["split"] == "test")]
    sampled = there[there["greedy"] == 0]
    greedy = there[there["greedy"] == 1]
    values = (sampled["right"], greedy["right"], sampled["sense"], greedy["sense"])
    return {name: float(verdicts.mean()) for name, verdicts in zip(SCORES, values, strict=True)}


def step_by_sense(texts: pd.DataFrame) -> int:
    """Return the step whose texts on the validation prompts have the highest gold'; of equal ones the first."""
    of_validation = texts[texts["split"] == "validation"]
    return int(of_validation.groupby("step")["sense"].mean().idxmax())


def step_by_kl(tables: Tables, key: RunKey) -> int:
    """
    Return the step of the first checkpoint whose KL to the base, on the prompts of its task, is at least the target;
    the last step if none is.
    """
    points = tables.points.loc[[key]]
    own = points[points["task"] == points["task"].iloc[0]]  # comes first
    far = own.loc[own["kl_to_base"] >= KL_TARGET, "step"]
    return int(far.min()) if len(far) else key.steps


def scores(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return the four scores, and the `step` that they are of: a row for each arm, each stop of plain, and the base, by
    `arm` and `seed`; the base, which has no training seed, has 0.
    """
    rows = []
    for run in block.runs:
        key = run.key
        if key not in tables.texts.index:
            continue
        texts = texts_of(tables, key)
        steps = {key.arm: key.steps}
        if key.arm == PLAIN:
            steps |= {BY_KL: step_by_kl(tables, key), BY_SENSE: step_by_sense(texts)}
        for name, step in steps.items():
            rows.append({"arm": name, "seed": key.seed, "step": step, **scores_at(texts, step)})
    if rows:
        base = block.runs[0].key.base
        rows.insert(0, {"arm": BASE_ARM, "seed": 0, "step": 0, **scores_at(texts_of(tables, base), 0)})
    return pd.DataFrame(rows, columns=["arm", "seed", "step", *SCORES]).set_index(["arm", "seed"])


def means(block: Block, tables: Tables) -> pd.DataFrame:
    """Return the means of [`scores`] over seeds, by arm and in its order."""
    return scores(block, tables).groupby(level="arm", sort=False).mean()


def control_less_plain(block: Block, tables: Tables, score: str) -> float | None:
    """Return a score of the control at `kl_target` less plain's, a mean over the seeds that have both."""
    found = scores(block, tables)[score].unstack("arm")
    if CONTROL not in found or PLAIN not in found:
        return None
    difference = (found[CONTROL] - found[PLAIN]).dropna()
    return float(difference.mean()) if len(difference) else None


def less_plain(block: Block, tables: Tables, arm: str) -> Estimate | None:
    """
    Return sampled gold' of an arm less plain's with its t-interval over the test prompts, each a mean over the seeds
    that have both: it speaks of these trained models, and of no others.
    """
    of_arms = {}
    for name in (arm, PLAIN):
        of_seeds = {}
        for run in block.runs:
            if run.key.arm == name and run.key in tables.texts.index:
                texts = texts_of(tables, run.key)
                of_end = (texts["step"] == run.key.steps) & (texts["split"] == "test") & (texts["greedy"] == 0)
                of_seeds[run.key.seed] = texts[of_end].groupby("prompt")["sense"].mean()
        of_arms[name] = pd.DataFrame(of_seeds)
    difference = (of_arms[arm] - of_arms[PLAIN]).dropna(axis=1, how="all")
    if difference.empty:
        return None
    return over_bases(difference.mean(axis=1)).estimate


def is_met(difference: float) -> bool:
    """The control is ahead by at least .08 of gold'."""
    return difference >= AHEAD


def is_refuted(difference: float) -> bool:
    """... which is refuted by a mean over the seeds below 0."""
    return difference < 0


def main() -> None:
    """Print the means of all arms and stops, the differences, and what becomes of the prediction."""
    root = Path.cwd()
    tables = read_tables(root)
    (block,) = read_matrix(root).selected([BLOCK]).blocks
    print(f"means over seeds\n{means(block, tables).to_string()}\n")
    for arm in block.arms:
        estimate = None if arm == PLAIN else less_plain(block, tables, arm)
        if estimate is not None:
            print(f"gold', sampled, {arm} less {PLAIN}: {interval_cell(estimate, '+.3f')}, over prompts")
    difference = control_less_plain(block, tables, "gold'")
    if difference is not None:
        grade = f"met: {is_met(difference)}; refuted: {is_refuted(difference)}"
        print(f"gold', sampled, {CONTROL} less {PLAIN}: {difference:+.3f}; {grade}")


if __name__ == "__main__":
    main()
