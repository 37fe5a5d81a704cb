"""Every mean that is logged or recorded, against the rows and tokens by hand."""

import math
import statistics

import pytest
import torch
from datasets import Dataset
from run_record import read_rows, without_times
from tiny_run import vowels
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.parts import Part
from trl_prorl.run.record import evaluation_row


# Four micro-batches a step, of unequal numbers of tokens; some have none, because all their completions are truncated.
UNEQUAL = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_generations": 2,
    "mask_truncated_completions": True,
    "max_completion_length": 12,
    "temperature": 1.3,
    "logging_steps": 2,
    "generation_kwargs": {"sequence_bias": [[[4], 3.0]]},  # a completion ends at any length
}
EPSILON = 1e-3


class Watch(Part):
    """Add up what the micro-batches and the batches of each step hold."""

    def __init__(self):
        self.steps = [{}]
        self.tokens = []

    def on_loss(self, micro_batch):
        batch = micro_batch.batch
        mask = batch["completion_mask"].double()
        self.tokens.append(int(mask.sum()))
        old = batch.get("old_per_token_logps", micro_batch.logps)
        ratio = (micro_batch.logps - old).exp()
        advantages = batch["advantages"].unsqueeze(1)
        clipped = ((ratio > 1 + EPSILON) & (advantages > 0)) | ((ratio < 1 - EPSILON) & (advantages < 0))
        values = {"tokens": torch.ones_like(mask), "clipped": clipped.double()}
        if "ref_per_token_logps" in batch:
            gap = batch["ref_per_token_logps"] - micro_batch.logps
            values["kl"] = (gap.exp() - gap - 1) * ratio
        computed = mask if micro_batch.rows is None else torch.zeros_like(mask)
        if micro_batch.rows is not None:
            computed[micro_batch.rows] = mask[micro_batch.rows]
        values["computed"] = computed
        values["entropy"] = micro_batch.entropies * computed
        for name, value in values.items():
            self.steps[-1][name] = self.steps[-1].get(name, 0.0) + float((value * mask).sum())

    def on_row(self, step, row):
        self.steps.append({})

    def means(self, *steps):
        totals = {name: sum(self.steps[step][name] for step in steps) for name in self.steps[steps[0]]}
        means = {name: total / totals["tokens"] for name, total in totals.items()}
        return {**means, "entropy": totals["entropy"] / totals["computed"]}


@pytest.mark.parametrize(
    "keys",
    [
        {"beta": 0.1},
        {"beta": 0.1, "ref_reset_every": 1, "kl_estimator": "k3"},
        {"fast": True},
    ],
    ids=["TRL's loss", "A", "fast"],
)
def test_means_over_tokens(make_trainer, keys):
    trainer = make_trainer(epsilon=EPSILON, **UNEQUAL, **keys)
    watch = Watch()
    trainer.parts["watch"] = watch
    trainer.train()
    assert 0 in watch.tokens and len(set(watch.tokens)) > 4
    rows = read_rows(trainer)
    for number, row in enumerate(rows):
        by_hand = watch.means(number)
        assert row["entropy"] == pytest.approx(by_hand["entropy"], rel=1e-5)
        assert row["clip_region_mean"] == pytest.approx(by_hand["clipped"], rel=1e-5)
        if "kl" in by_hand:
            assert row["kl"] == pytest.approx(by_hand["kl"], rel=1e-4)
    assert any(row["clip_region_mean"] > 0 for row in rows)


def letters(seen):
    """Make two rewards that keep what they are called with; the second is silent about every third, or second."""

    def length(completions, completion_ids, **columns):
        seen.append({"ids": completion_ids, "length": [len(ids) / 2 for ids in completion_ids]})
        return seen[-1]["length"]

    def sometimes(completions, **columns):
        every = 2 + len(seen) % 2  # from batch to batch another number
        values = [len(text[0]["content"]) if place % every else None for place, text in enumerate(completions)]
        seen[-1]["sometimes"] = values
        return values

    return [length, sometimes]


def test_the_rewards_of_an_evaluation_are_means_over_its_rows(make_trainer):
    """Five prompts of two completions, in batches of four rows: the last has two."""
    seen = []
    prompts = [[{"role": "user", "content": f"say {number}"}] for number in range(5)]
    keys = UNEQUAL | {"mask_truncated_completions": False, "per_device_eval_batch_size": 4, "beta": 0.1}
    trainer = make_trainer(
        reward=letters(seen), trainer_kwargs={"eval_dataset": Dataset.from_dict({"prompt": prompts})}, **keys
    )
    metrics = trainer.evaluate()
    assert [len(batch["ids"]) for batch in seen] == [4, 4, 2]
    lengths, others = ([row for batch in seen for row in batch[key]] for key in ("length", "sometimes"))
    scored = [value for value in others if value is not None]
    totals = [length + (other or 0) for length, other in zip(lengths, others, strict=True)]
    pairs = [totals[place : place + 2] for place in range(0, 10, 2)]
    by_hand = {
        "reward": statistics.mean(totals),
        "reward_std": statistics.stdev(totals),
        "rewards/length/mean": statistics.mean(lengths),
        "rewards/sometimes/mean": statistics.mean(scored),
        "rewards/sometimes/std": statistics.stdev(scored),
        "frac_reward_zero_std": statistics.mean(one == other for one, other in pairs),
    }
    for name, value in by_hand.items():
        assert metrics[f"eval_{name}"] == pytest.approx(value, rel=1e-5), name


def test_an_evaluation_after_a_prediction_has_its_own_means(make_trainer):
    """`predict` logs nothing, so its values are still in TRL's lists."""
    numbers = iter([1.0, 0.0])

    def reward(completions, log_metric, **columns):
        log_metric("number", next(numbers))
        return [0.0 for _ in completions]

    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "say 5"}]]})
    trainer = make_trainer(reward=reward, num_generations=2, per_device_eval_batch_size=2)
    assert trainer.predict(rows).metrics["test_number"] == 1.0
    assert trainer.evaluate(rows)["eval_number"] == 0.0


def test_the_log_of_unequal_batches_has_trl_s_numbers(run):
    keys = UNEQUAL | {"beta": 0.1}
    ours = run(**keys)
    theirs = run(GRPOTrainer, **keys)
    logged = [entry["entropy"] for entry in ours.state.log_history if "entropy" in entry]
    for mine, entry in zip(ours.state.log_history, without_times(theirs.state.log_history), strict=True):
        assert {name: mine[name] for name in entry} == entry
    by_steps = [row["entropy"] for row in read_rows(ours)]
    assert len(logged) == 2 and statistics.mean(by_steps[:2]) != logged[0]  # a row's are over its tokens


def half(completions, **columns):
    return [place / 7 if place % 8 > 3 else 0.0 for place in range(len(completions))]  # equal in every second group


def rarely(completions, **columns):
    return [None if place % 3 else float(place % 4) for place in range(len(completions))]


def opposed(completions, **columns):
    return [1.0 - reward for reward in half(completions)]  # up to rounding


NORMALIZED = {"multi_objective_aggregation": "normalize_then_sum"}


@pytest.mark.parametrize(
    "rewards, weights, keys, share",
    [
        ([half, rarely], [0.0, 1.0], NORMALIZED, None),
        ([half, rarely], [1.0, 0.0], NORMALIZED, 0.5),
        ([half, opposed], [0.3, 0.3], NORMALIZED, 1.0),
        ([half, opposed], [0.3, 0.2], NORMALIZED, 0.5),
        ([half, vowels], [0.0, 0.0], NORMALIZED, 1.0),
        ([half], [1.0], {"scale_rewards": "batch"}, 0.5),
        ([half], [1.0], {}, 0.5),
    ],
)
def test_a_group_without_signal_is_one_whose_advantages_are_0_in_trl(run, rewards, weights, keys, share):
    """TRL divides rounding noise by 1e-4; other advantages are near 1."""
    trainer = run(reward=rewards, reward_weights=weights, num_iterations=1, per_device_train_batch_size=16, **keys)
    advantages = torch.tensor(trainer._logs["advantages"]).view(-1, 4)
    equal = (advantages.abs() < 1e-2).all(dim=1).float().mean().item()
    assert read_rows(trainer)[-1]["frac_reward_zero_std"] == equal
    assert share in (None, equal)


def test_each_reward_and_its_time_are_recorded(make_trainer):
    """Of two generation batches in a step; a mean is over the rows that have this reward."""
    seen = []
    keys = UNEQUAL | {"steps_per_generation": 2, "num_iterations": 1, "logging_steps": 1}
    trainer = make_trainer(reward=letters(seen), **keys)
    trainer.train()
    rows = read_rows(trainer)
    for number, row in enumerate(rows):
        batches = seen[2 * number : 2 * number + 2]
        lengths = [value for batch in batches for value in batch["length"]]
        others = [value for batch in batches for value in batch["sometimes"] if value is not None]
        assert row["rewards/length/mean"] == pytest.approx(statistics.mean(lengths))
        assert row["rewards/sometimes/mean"] == pytest.approx(statistics.mean(others))
        tokens = [len(ids) for batch in batches for ids in batch["ids"]]
        assert row["completions/min_length"] == min(tokens) < max(tokens) == row["completions/max_length"]
        assert 0 < row["time_reward"] < row["time_rollout"]


def test_a_log_over_several_steps_is_the_same_after_a_resume(make_trainer, tmp_path):
    keys = UNEQUAL | {"logging_steps": 4, "save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path)}
    whole = make_trainer(beta=0.1, **keys)
    whole.train()
    resumed = make_trainer(beta=0.1, **keys)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    first, second = (without_times(trainer.state.log_history[0]) for trainer in (whole, resumed))
    assert first["step"] == 4
    del first["loss"], second["loss"]  # transformers' mean is over the steps since the resume
    assert first == second
    assert first["prorl/kl_ref"] == pytest.approx(statistics.mean(row["kl_ref"] for row in read_rows(tmp_path)))


def test_a_step_that_trains_on_two_batches_has_the_means_of_both(make_trainer):
    """Three micro-batches a generation, two a step: the second step trains on the end of one and begins another."""
    seen = []
    keys = UNEQUAL | {"gradient_accumulation_steps": 2, "steps_per_generation": 3, "num_iterations": 1}
    trainer = make_trainer(reward=letters(seen), max_steps=3, **keys)
    trainer.train()
    first, second = (statistics.mean(batch["length"]) for batch in seen)
    assert first != second
    rewards = [row["rewards/length/mean"] for row in read_rows(trainer)]
    assert rewards == pytest.approx([first, (first + second) / 2, second])


class Subclass(ProRLTrainer):
    """Appends to TRL's lists inside and after TRL's methods, as a subclass of TRL's trainer may."""

    def append(self, name):
        value = float(len(self.appended) ** 2 % 7)
        mode = "train" if self.model.training else "eval"
        self.appended.append((mode, name, self.state.global_step, value))
        self._metrics[mode][name].append(torch.tensor(value))

    def _compute_loss(self, *args):
        loss = super()._compute_loss(*args)
        self.append("inside")
        return loss

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.append("after")
        return loss

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.append("sampled")
        return batch

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.append("stepped")
        self.append("step")  # the name of a column of ours
        return loss

    def prediction_step(self, *args, **kwargs):
        result = super().prediction_step(*args, **kwargs)
        self.append("stepped")
        return result


def test_a_subclass_s_metrics_are_means_of_its_values(make_trainer):
    """Several generations in a step, and batches that two steps train on."""
    rows = {"prompt": [[{"role": "user", "content": "say 5"}]] * 4}
    keys = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 2, "num_generations": 2}
    keys |= {"per_device_train_batch_size": 2, "trainer_kwargs": {"eval_dataset": Dataset.from_dict(rows)}}
    for split in ({"steps_per_generation": 1, "num_iterations": 1}, {"steps_per_generation": 8}):
        trainer = make_trainer(Subclass, gradient_accumulation_steps=4, **split, **keys)
        trainer.appended = []
        trainer.train()
        rows = {("train", row["step"] - 1): row for row in read_rows(trainer)}
        (evaluation,) = read_rows(trainer, "evaluations.jsonl")
        rows["eval", 4] = {name.removeprefix("eval_"): value for name, value in evaluation.items()}
        values = {}
        for mode, name, step, value in trainer.appended:
            values.setdefault((mode, step, name), []).append(value)
        assert [row["step"] for row in read_rows(trainer)] == [1, 2, 3, 4]
        for (mode, step, name), of_step in values.items():
            if name == "step":
                continue
            assert rows[mode, step][name] == pytest.approx(statistics.mean(of_step)), (mode, step, name)


def test_tokens_so_far_are_those_of_all_rounds(run):
    trainer = run(reward=lambda completions, **columns: [1.0] * len(completions), dynamic_sampling_rounds=2)
    assert read_rows(trainer)[-1]["num_tokens"] == trainer.state.num_input_tokens_seen


def test_what_no_row_has_is_left_out(run):
    def silent(completions, **columns):
        return [None] * len(completions)

    (row,) = read_rows(run(reward=[vowels, silent], max_steps=1))
    assert not [name for name, value in row.items() if "silent" in name or value is None or value != value]


def test_an_infinite_value_is_in_no_file():
    """JSON has none. Nor has a row a reward that scored nothing."""
    metrics = {
        "eval_reward": -math.inf,
        "eval_rewards/silent/mean": None,
        "eval_b_runtime": 2.0,
        "eval_entropy": 0.5,
        "epoch": 1.0,
    }
    row = evaluation_row(1, 0, metrics, seconds=3.0)
    assert row == {"step": 1, "attempt": 0, "eval_entropy": 0.5, "time_eval": 3.0}
