"""The record's counts against a hook on the base model, from outside."""

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from run_record import read_rows


class Witness:
    """Counts scoring forwards of the backbone by what the network itself shows at that moment."""

    def __init__(self, trainer):
        self.calls = {"policy": 0, "ref": 0, "old": 0}
        self.tokens = {"policy": 0, "ref": 0, "old": 0}
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.tuner = next((m for m in model.modules() if isinstance(m, BaseTunerLayer)), None)
        backbones = [(model.get_base_model() if self.tuner else model).model]
        if trainer.ref_model is not None:
            backbones.append(trainer.accelerator.unwrap_model(trainer.ref_model).model)
        for backbone in backbones:
            backbone.register_forward_pre_hook(self.see, with_kwargs=True)
        self.policy = backbones[0]

    def see(self, backbone, args, kwargs):
        if kwargs.get("use_cache") is not False:
            return  # generation
        frozen = self.tuner is not None and (self.tuner.disable_adapters or "ref" in self.tuner.active_adapters)
        reference = backbone is not self.policy or frozen
        kind = "ref" if reference else "policy" if torch.is_grad_enabled() else "old"
        self.calls[kind] += 1
        self.tokens[kind] += kwargs["input_ids"].numel()


# A's and B's last ones: TRL's own defaults, on a CPU too.
TRLS = {"bf16": True, "gradient_checkpointing": True}
SCORED = {
    "control": ({"beta": 0.1}, 1, 1),
    "A": ({"beta": 0.1, "ref_reset_every": 2}, 1, 1),
    "A+reuse": ({"beta": 0.1, "ref_reset_every": 2, "reuse_old_logps": True}, 1, 0),
    "A0": ({"beta": 0.1, "ref_reset_every": 2, "ref_compute": "naive_epoch", "reuse_old_logps": True}, 2, 0),
    "B": ({"beta_old": 0.1}, 0, 1),
    "B+reuse": ({"beta_old": 0.1, "reuse_old_logps": True}, 0, 0),
    "plain": ({}, 0, 1),
    "plain on-policy": ({"num_iterations": 1}, 0, 0),
    "A, bf16": ({"beta": 0.1, "ref_reset_every": 2, **TRLS}, 1, 1),
    "B, bf16": ({"beta_old": 0.1, "reuse_old_logps": True, **TRLS}, 0, 0),
}
FULL = ("A", "A0", "B", "B, bf16")


@pytest.mark.gpu
@pytest.mark.parametrize("case, lora", [*((case, True) for case in SCORED), *((case, False) for case in FULL)])
def test_counts_agree_with_a_hook_on_the_model(make_trainer, case, lora):
    """`ref` and `old` are scorings of the whole generation batch, of which there are two in this run."""
    keys, ref, old = SCORED[case]
    steps_per_generation = 2
    iterations = keys.get("num_iterations", 2)
    keys = {"num_iterations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **keys}
    trainer = make_trainer(lora=lora, max_steps=2 * iterations, **keys)
    # Forwards before the first update that compare are no scorings of the run.
    trainer._compare_scores = lambda: None
    trainer._check_noise = lambda: None
    witness = Witness(trainer)
    trainer.train()
    rows = read_rows(trainer)
    for kind in ("policy", "ref", "old"):
        assert sum(row[f"{kind}_forward_calls"] for row in rows) == witness.calls[kind]
        assert sum(row[f"tokens_processed_{kind}"] for row in rows) == witness.tokens[kind]
    assert witness.calls["ref"] == 2 * ref * steps_per_generation
    assert witness.calls["old"] == 2 * old * steps_per_generation
    assert witness.calls["policy"] == 2 * iterations * steps_per_generation
    if "beta_old" in keys:  # B has no reference of any kind
        assert trainer.ref_model is None
        assert trainer.reference is None
        assert not lora or list(trainer.accelerator.unwrap_model(trainer.model).peft_config) == ["default"]
        assert all("kl_ref" not in row and row["time_ref"] == 0.0 for row in rows)


@pytest.mark.parametrize("has_verifier", [True, False])
def test_every_task_has_its_reward_and_with_a_verifier_its_pass_rate(run, has_verifier):
    """Two tasks, one always solved, the other never; its reward of 12 says nothing of that."""

    def reward(prompts, task, **kwargs):
        return [1.0 if name == "easy" else 12.0 for name in task]

    def verify(completions, task, **kwargs):
        return [name == "easy" for name in task]

    if has_verifier:
        reward.batch_verifier = verify
    pass_rates = {"pass_rate/easy": 1.0, "pass_rate/hard": 0.0} if has_verifier else {}
    expected = {"reward/easy": 1.0, "reward/hard": 12.0} | pass_rates
    for rounds in (0, 1):
        keys = {"columns": {"task": ["easy", "hard"] * 8}, "max_steps": 6, "dynamic_sampling_rounds": rounds}
        rows = read_rows(run(reward=reward, **keys))
        seen = {(key, row[key]) for row in rows for key in row if key.startswith(("reward/", "pass_rate/"))}
        assert seen == set(expected.items())


def test_a_task_that_the_first_reward_function_leaves_to_another_has_none_there(run):
    def first(task, **kwargs):
        return [None if name == "other" else 1.0 if i % 2 else None for i, name in enumerate(task)]

    def second(task, **kwargs):
        return [0.5 if name == "other" else None for name in task]

    trainer = run(reward=[first, second], columns={"task": ["mine", "other"] * 8}, max_steps=6)
    rows = read_rows(trainer)
    seen = {(key, value) for row in rows for key, value in row.items() if key.startswith(("reward/", "pass_rate/"))}
    assert seen == {("reward/mine", 1.0)}  # of those that it scored


@pytest.mark.parametrize("rounds", [0, 1])
def test_tokens_that_the_loss_leaves_out_were_generated_all_the_same(run, rounds):
    seen = []

    def reward(completion_ids, **kwargs):
        seen.append(sum(map(len, completion_ids)))
        return [0.0 if len(seen) == 1 else float(i) for i in range(len(completion_ids))]

    trainer = run(reward=reward, max_steps=1, mask_truncated_completions=True, dynamic_sampling_rounds=rounds)
    (row,) = read_rows(trainer)
    assert len(seen) == 1 + rounds
    assert row["tokens_generated"] == sum(seen)
