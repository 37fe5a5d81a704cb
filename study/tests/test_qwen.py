"""What is kept of the Qwen's runs, from folders made by hand; and its page's numbers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from study import qwen
from trl_prorl.errors import InputError


ROOT = Path(__file__).parents[2]
STEPS = [
    {"step": 1, "reward": 0.25, "time_rollout": 9.0, "kl_old": 0.0},
    {"step": 2, "reward": 0.25, "time_rollout": 0.0, "kl_old": 0.1},
]


def write_samples(run, side, temperature, verdicts):
    """One completion of `verdicts` a row: question, sample, right, cut; with two tokens, or three if it was cut."""
    folder = run / "samples" / f"{side}-0123456789ab"[: len(side) + 9 + (temperature > 0)]
    folder.mkdir(parents=True)
    (folder / "_settings.json").write_text(json.dumps({"temperature": temperature}))
    rows = [
        {"prompt_id": prompt, "sample": sample, "correct": right, "truncated": cut, "ids": [7] * (3 if cut else 2)}
        for prompt, sample, right, cut in verdicts
    ]
    pd.DataFrame(rows).to_parquet(folder / "samples.parquet")


@pytest.fixture
def run(tmp_path):
    """Two questions with two samples each, of which the base has 1 of 4 right and the run 3 of 4."""
    run = tmp_path / "plain"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in STEPS))
    (run / "passk.json").write_text(json.dumps({"prompt_ids": ["b", "a"]}))
    write_samples(
        run, "base", 1.0, [("a", 0, True, False), ("a", 1, False, True), ("b", 0, False, True), ("b", 1, False, False)]
    )
    write_samples(
        run,
        "trained",
        1.0,
        [("a", 0, True, False), ("a", 1, True, False), ("b", 0, False, True), ("b", 1, True, False)],
    )
    write_samples(run, "base", 0.0, [("a", 0, True, False), ("b", 0, False, False)])
    write_samples(run, "trained", 0.0, [("a", 0, True, False), ("b", 0, True, False)])
    return run


def test_scores_by_hand(run):
    verdicts = qwen.read_verdicts(run)
    found = qwen.scores(verdicts).set_index(["model", "decoding"])
    base = found.loc["base of plain", "sampled"]
    assert (base["questions"], base["n"]) == (2, 2)
    assert base["pass@1"] == 0.25
    assert base["pass@n"] == 0.5
    assert base["right of whole"] == 0.5
    assert base["truncated"] == 0.5
    assert base["tokens"] == 2.5
    trained = found.loc["plain", "sampled"]
    assert (trained["pass@1"], trained["pass@n"], trained["truncated"]) == (0.75, 1.0, 0.25)
    assert found.loc["base of plain", "greedy"]["pass@1"] == 0.5
    assert qwen.gain(verdicts, "plain", "sampled").value == 0.5
    assert qwen.gain(verdicts, "plain", "greedy").value == 0.5


def test_a_run_is_kept_once_beside_the_others(run, tmp_path):
    root = tmp_path / "root"
    (root / qwen.FOLDER).mkdir(parents=True)
    qwen.keep_run(root, run)
    other = run.rename(run.with_name("control"))
    qwen.keep_run(root, other)
    qwen.keep_run(root, other)
    steps = pd.read_csv(root / qwen.STEPS)
    assert steps[["arm", "step"]].values.tolist() == [["plain", 1], ["plain", 2], ["control", 1], ["control", 2]]
    verdicts = pd.read_csv(root / qwen.VERDICTS)
    assert verdicts.groupby("model").size().to_dict() == {
        **dict.fromkeys(("base of plain", "base of control"), 6),
        **dict.fromkeys(("plain", "control"), 6),
    }


def test_questions_stand_in_the_order_of_the_evaluation(run):
    """So a bootstrap over them is that of `trl-prorl passk`, to the digit."""
    verdicts = qwen.read_verdicts(run)
    orders = verdicts.groupby(["model", "decoding"])["prompt"].unique().map(list)
    assert orders.tolist() == [["b", "a"]] * 4


def test_two_evaluations_of_one_model_are_refused(run):
    """In another precision, say: their samples would count as one."""
    (of_base, *_) = sorted((run / "samples").glob("base-*"))
    shutil.copytree(of_base, of_base.with_name("base-zz"))
    with pytest.raises(InputError, match=f"{of_base.name} and base-zz are both base, .*; move one away"):
        qwen.read_verdicts(run)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no metrics.jsonl"):
        qwen.read_steps(tmp_path)
    with pytest.raises(InputError, match="was not evaluated"):
        qwen.read_verdicts(tmp_path)


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved, in place of files."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: saved.append((path, self)))
    return saved


def test_the_picture_has_every_batch_once_and_means_of_four(figures):
    """Each batch is used twice. Rewards of six batches: 0.1 to 0.6; of them 0.2, 0.3… were cut."""
    steps = pd.DataFrame({"arm": "plain", "step": range(1, 13), "time_rollout": [9.0, 0.0] * 6})
    steps["reward"] = np.repeat(np.arange(1, 7), 2) / 10
    steps["truncated_fraction"] = steps["reward"] + 0.1
    qwen.draw_curve(steps, Path("a picture"))
    ((path, figure),) = figures
    assert path == Path("a picture")
    means = np.array([0.1, 0.15, 0.2, 0.25, 0.35, 0.45])
    for axes, more in zip(figure.axes, (0.0, 0.1), strict=True):
        batches, mean = axes.lines
        assert batches.get_xdata().tolist() == mean.get_xdata().tolist() == [1, 3, 5, 7, 9, 11]
        assert batches.get_ydata() == pytest.approx(np.arange(1, 7) / 10 + more)
        assert mean.get_ydata() == pytest.approx(means + more)
        assert mean.get_label() == "plain: mean of the last four batches"


def test_the_command_keeps_a_run_and_prints_the_gain(run, tmp_path, figures, capsys):
    root = tmp_path / "root"
    (root / qwen.FOLDER).mkdir(parents=True)
    for arguments in ([str(run)], []):  # with the run, and from the tables alone
        qwen.main([*arguments, "--root", str(root)])
        *_, greedy, sampled = capsys.readouterr().out.splitlines()
        # Two questions have no interval.
        assert greedy.startswith("plain less its base, greedy: +0.500 (n/a), detectable")
        assert sampled.startswith("plain less its base, sampled: +0.500 (n/a), detectable")
    assert [path for path, _ in figures] == [root / qwen.PICTURE] * 2


# ------------------------------------------------------------------------------------------------------ the pages


def read_page(name):
    return " ".join((ROOT / name).read_text().split())


def percent(value):
    return f"{100 * value:.1f}"


PAGE = read_page("study/pages/qwen.md")
TABLE_OF_STEPS = pd.read_csv(ROOT / qwen.STEPS)
VERDICTS = pd.read_csv(ROOT / qwen.VERDICTS)
SCORES = qwen.scores(VERDICTS).set_index(["model", "decoding"])


def steps_of(arm):
    steps = TABLE_OF_STEPS[TABLE_OF_STEPS["arm"] == arm]
    assert steps["step"].tolist() == [*range(1, 21)]
    return steps


def minutes_of(arm):
    return f"{steps_of(arm)['time_step'].sum() / 60:.0f} minutes"


def batches_of(arm):
    """The steps that sampled; the others use a batch again."""
    steps = steps_of(arm)
    return steps[steps["time_rollout"] > 0]


def test_the_page_has_the_scores_of_the_tables():
    names = {"base of plain": "base", "plain": "plain"}
    names |= {"base of plain_seed2": "base in bf16", "plain_seed2": "seed 2, bf16"}
    names |= {"control_seed2": "control, seed 2, bf16"}
    same = SCORES.loc["base of control_seed2"]  # its samples of the base are those beside plain's second run
    pd.testing.assert_frame_equal(same, SCORES.loc["base of plain_seed2"])
    told = SCORES.drop(index="base of control_seed2")
    assert len(told) == 2 * len(names)
    for (model, decoding), row in told.iterrows():
        first = f"{percent(row['pass@1'])} % [{percent(row['low'])}, {percent(row['high'])}]"
        second = f"{percent(row['pass@n'])} %" if decoding == "sampled" else ""
        shares = [f"{percent(row[column])} %" for column in ("right of whole", "truncated")]
        cells = [f"| {names[model]}, {decoding}", first, second, *shares, f"{row['tokens']:.0f} |"]
        assert " | ".join(cells).replace("|  |", "| |") in PAGE
        assert (row["questions"], row["n"]) == (100, 2 if decoding == "sampled" else 1)
    assert "On 100 test questions, with at most 200 tokens a text. *Sampled* is two texts a question at T = 1." in PAGE
    assert (VERDICTS["tokens"][VERDICTS["truncated"]] == 200).all()


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ("plain", "The gain on the same questions is"),
        ("plain_seed2", "With seed 2 it is"),
        ("control_seed2", "The control's is"),
    ],
)
def test_the_page_has_the_gains_of_the_tables(arm, told):
    gains = [
        "{} points [{}, {}] {}".format(*map(percent, qwen.gain(VERDICTS, arm, decoding)), decoding)
        for decoding in ("sampled", "greedy")
    ]
    assert f"{told} {gains[0]}, and {gains[1]}." in PAGE


def test_most_of_what_was_learned_is_form():
    sampled = VERDICTS[VERDICTS["decoding"] == "sampled"]
    is_short = sampled["tokens"] < 40
    short = is_short.groupby(sampled["model"]).mean()
    assert not sampled["correct"][is_short & (sampled["model"] == "base of plain")].any()
    of_base = (
        f"With seed 1, sampled, {100 * short['base of plain']:.0f} % of the base's texts have fewer than 40 tokens"
    )
    assert f"{of_base}, and none of" in PAGE
    assert f"of plain's {100 * short['plain']:.0f} % are as short" in PAGE


def test_the_page_has_the_seconds_of_the_tables():
    sampling = batches_of("plain")["time_rollout"].median()
    update = steps_of("plain")["time_update"]
    assert f"Sampling a batch took {sampling:.0f} seconds, and an update {update.median():.0f} seconds" in PAGE
    assert f"an update takes {update.min():.0f} to {update.max():.0f} seconds" in PAGE
    assert f"Twenty steps took {minutes_of('plain')}" in PAGE


def test_the_second_run():
    rewards = batches_of("plain_seed2")["reward"]
    began, ended = (f"{100 * of.mean():.0f} %" for of in (rewards.iloc[:4], rewards.iloc[-4:]))
    told = f"{minutes_of('plain_seed2')}. The share of right texts went from {began} in its first four"
    assert f"{told} batches to {ended} in its last four." in PAGE


def test_what_other_pages_say_of_the_qwen():
    began, ended = (f"{100 * SCORES.loc[(model, 'sampled'), 'pass@1']:.3g} %" for model in ("base of plain", "plain"))
    minutes = minutes_of("plain")
    recipe = read_page("recipes/gsm8k/qwen2.5-coder-1.5b-cpu/README.md")
    assert f"20 steps of `plain` took pass@1 from {began} to {ended}, sampled, in {minutes}" in recipe
    log = read_page("docs/log.md")
    assert f"did 20 steps in {minutes}" in log
    batches = batches_of("plain")
    *most, last = (f"{reward:.2f}".lstrip("0") for reward in batches["reward"])
    assert f"ten batches was {', '.join(most)} and {last}." in log
    cut = [f"{100 * share:.0f} %" for share in batches["truncated_fraction"]]
    assert f"of which {cut[4]} were cut in the fifth batch; in the tenth {cut[9]} were" in log


def test_the_control_did_not_hold_its_kl():
    """So what a KL does is not tested: the record of its batches against its recipe's target, and plain's minutes."""
    first, second = steps_of("control_seed2")["kl_ref"].iloc[-2:]
    assert f"in the two updates of the last batch it was {first:.3f} and {second:.3f}." in PAGE
    beta = steps_of("control_seed2")["beta"]
    lowest = beta.to_numpy().argmin()
    assert beta.iloc[0] == 0.02
    assert f"it only fell to {beta.iloc[lowest]:.3f} and rose to {beta.iloc[lowest:].max():.3f}." in PAGE
    plain = minutes_of("plain_seed2").removesuffix(" minutes")
    assert f"Twenty steps took {minutes_of('control_seed2')}, where plain took {plain}:" in PAGE
