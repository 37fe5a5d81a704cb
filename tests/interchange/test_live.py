"""A live trainer: what is exported is what the update was made from, and an import is everything or nothing."""

import math
import re

import pytest
import torch
from exchange import STATE, EveryUpdate, live_state
from run_record import read_rows
from tiny_run import QUESTIONS
from tool_run import KEYS, add, rewarded, speaks
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl_prorl.errors import InputError
from trl_prorl.interchange import (
    Rollout,
    UpdateInputs,
    UpdateOutputs,
    export_update,
    import_update,
    next_update,
    read,
    write,
)


A_RESET = {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.25}


def test_the_inputs_are_the_state_that_the_last_update_left(exporting, run, weights):
    """So that a reset is in the inputs as what it does, and has not been done yet; the training is what it was."""
    trainer, callback = exporting(max_steps=5, **A_RESET)
    plain = weights(run(max_steps=5, **A_RESET))
    assert all(torch.equal(value, plain[name]) for name, value in weights(trainer).items())
    first = read(UpdateInputs, callback.folder / "1")
    assert all(not moment.any() for moment in (*first.exp_avg.values(), *first.exp_avg_sq.values()))
    assert all(step.item() == 0.0 for step in first.steps.values())
    for number in range(2, 6):
        inputs = read(UpdateInputs, callback.folder / str(number))
        for kind in STATE:
            for name, value in callback.after[number - 1][kind].items():
                assert torch.equal(getattr(inputs, kind)[name], value), (number, kind, name)
        expected = {"mode": "soft", "alpha": 0.25, "restarts_schedule": False, "rewarmup_steps": 0}
        assert inputs.reset == (expected if number in (3, 5) else None)
        assert inputs.update == number
        assert inputs.growth is None
        assert not inputs.new_rows


def test_gradients_and_norm_are_those_before_clipping(make_trainer, tmp_path):
    """The optimizer sees them after: clipped to a norm that they exceed."""
    seen = {}

    class Clipped(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            found = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
            seen[state.global_step + 1] = {name: grad.clone() for name, grad in found.items()}

    trainer = make_trainer(max_grad_norm=0.01, max_steps=1, trainer_kwargs={"callbacks": [Clipped()]})
    export = export_update(trainer, tmp_path / "one")
    trainer.train()
    inputs = read(UpdateInputs, tmp_path / "one")
    norm = torch.stack([grad.double().norm() for grad in inputs.gradients.values()]).norm().item()
    assert export.done
    assert norm > 0.02
    assert inputs.clip_norm == 0.01
    assert inputs.grad_norm == pytest.approx(norm, rel=1e-5)
    assert inputs.gradients.keys() == seen[1].keys()
    for name, grad in seen[1].items():
        torch.testing.assert_close(inputs.gradients[name] * (0.01 / (inputs.grad_norm + 1e-6)), grad)
    assert inputs.grad_norm == pytest.approx(read_rows(trainer)[0]["grad_norm"])


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf])
def test_a_limit_by_which_nothing_is_clipped_is_exported_as_0(exporting, limit):
    _, callback = exporting(max_grad_norm=limit, max_steps=1)
    assert read(UpdateInputs, callback.folder / "1").clip_norm == 0.0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_learning_rate_is_the_one_in_force(exporting, accumulation):
    """Of the schedule and of the re-warm-up, as the record has it; and with accumulated micro-batches."""
    keys = {
        "optimizer_reset": "hard",
        "optimizer_reset_rewarmup_steps": 4,
        "optimizer_reset_schedule": "keep",
        "beta": 0.1,
        "ref_reset_every": 2,
        "lr_scheduler_type": "linear",
    }
    trainer, callback = exporting(**keys, max_steps=4, gradient_accumulation_steps=accumulation)
    rates = []
    for row in read_rows(trainer):
        inputs = read(UpdateInputs, callback.folder / str(row["step"]))
        assert [group["lr"] for group in inputs.groups] == [row["lr"]] * len(inputs.groups)
        rates.append(inputs.groups[0]["lr"])
        assert inputs.grad_norm == pytest.approx(row["grad_norm"])
    assert rates == pytest.approx([5e-3, 5e-3 * 0.75, 5e-3 * 0.5 / 4, 5e-3 * 0.25 / 2])


@pytest.mark.parametrize("keys", [{}, {"pack_groups": "on", "reuse_old_logps": True}], ids=["padded", "packed"])
def test_the_rollout_has_the_rows_of_the_update_with_their_own_rewards(exporting, keys):
    """Shuffled, and in micro-batches: each reward is computed again from its tokens, each advantage from its group."""
    trainer, callback = exporting(beta=0.1, num_iterations=1, gradient_accumulation_steps=2, max_steps=2, **keys)
    for number in (1, 2):
        rollout = read(Rollout, callback.folder / str(number))
        assert len(rollout.advantages) == 16
        assert rollout.rewards.shape == (16, 1)
        assert rollout.update == number
        assert rollout.group.unique().tolist() == [0, 1, 2, 3]
        assert rollout.reward_functions == ["vowels"]
        for ids, mask, reward in zip(rollout.completion_ids, rollout.completion_mask, rollout.rewards, strict=True):
            text = trainer.processing_class.decode(ids[mask.bool()], skip_special_tokens=True)
            assert reward.item() == pytest.approx(sum(ord(ch) < 103 for ch in text) / (len(text) + 1))
        for group in range(4):
            rows = rollout.group == group
            rewards = rollout.rewards[rows, 0]
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            torch.testing.assert_close(rollout.advantages[rows], expected, rtol=1e-4, atol=1e-5)
            prompts = rollout.prompt_ids[rows]
            assert (prompts == prompts[0]).all()
        assert rollout.logp_ref.shape == rollout.completion_ids.shape
        assert (rollout.logp_ref <= 0.0).all()


def test_logp_old_is_the_one_of_the_buffer(exporting):
    """With two passes over a batch, the second reads the first's log-probabilities."""
    _, callback = exporting(beta=0.0, num_iterations=2, reuse_old_logps=True, max_steps=2)
    first, second = (read(Rollout, callback.folder / name) for name in ("1", "2"))
    order = [(second.completion_ids == row).all(dim=1).nonzero()[0].item() for row in first.completion_ids]
    torch.testing.assert_close(first.logp_old, second.logp_old[order])
    assert first.logp_ref is None
    assert second.logp_ref is None


def test_full_fine_tuning(exporting):
    trainer, callback = exporting(lora=False, max_steps=1)
    inputs = read(UpdateInputs, callback.folder / "1")
    assert len(inputs.groups) == 2
    assert inputs.names == [name for g in inputs.groups for name in g["parameters"]]
    assert {group["weight_decay"] for group in inputs.groups} <= {0.0, trainer.args.weight_decay}
    assert set(inputs.names) == {name for name, _ in trainer.model.named_parameters()}


def test_gradients_of_amp_are_exported_unscaled_and_an_overflow_is_waited_out(exporting):
    """torch's scaler on a CPU: a scale of 2^100 overflows, and its step makes no update."""

    def prepare(trainer):
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100, backoff_factor=2.0**-90)
        trainer.accelerator.native_amp = True

    trainer, callback = exporting(fp16=True, max_steps=4, prepare=prepare)
    inputs = [read(UpdateInputs, path) for path in sorted(callback.folder.iterdir())]
    assert [each.update for each in inputs] == [2, 3, 4]
    record = read_rows(trainer)
    for each in inputs:
        norm = torch.stack([grad.double().norm() for grad in each.gradients.values()]).norm().item()
        assert each.grad_norm == pytest.approx(norm, rel=1e-5) == record[each.update - 1]["grad_norm"]
        assert norm > 0.1
        assert each.scaler["scale"] == 2.0**10


def test_groups_of_two_generations_in_one_update_have_numbers_of_their_own(exporting):
    keys = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_iterations": 1}
    _, callback = exporting(**keys, max_steps=2)
    for number in ("1", "2"):
        rollout = read(Rollout, callback.folder / number)
        assert rollout.group.bincount().tolist() == [4, 4, 4, 4]
        for group in range(4):
            prompts = rollout.prompt_ids[rollout.group == group]
            assert (prompts == prompts[0]).all()


def test_a_schedule_that_waits_for_a_plateau_is_exported(exporting):
    """Its state holds infinity, which JSON does not know."""
    keys = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 100, "max_steps": 1}
    keys |= {"metric_for_best_model": "eval_reward", "lr_scheduler_kwargs": {"mode": "max"}}
    _, callback = exporting(**keys, trainer_kwargs=QUESTIONS)
    inputs = read(UpdateInputs, callback.folder / "1")
    assert "best" not in inputs.schedule
    assert inputs.schedule["patience"] == 10


def test_after_a_full_disk_nothing_is_left_and_an_export_can_be_announced(make_trainer, tmp_path, monkeypatch):
    """The disk is full when the inputs are written, after the rollout."""

    def full(data, *args):
        if isinstance(data, UpdateInputs):
            raise OSError(28, "No space left on device")
        return write(data, *args)

    monkeypatch.setattr(next_update, "write", full)
    trainer = make_trainer(max_steps=1)
    export = export_update(trainer, tmp_path / "exchange" / "one")
    with pytest.raises(InputError, match="one could not be written.*No space left on device") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    assert not export.done
    assert list((tmp_path / "exchange").iterdir()) == []
    monkeypatch.undo()
    again = export_update(trainer, tmp_path / "exchange" / "one")
    trainer.train()
    assert again.done
    assert read(UpdateInputs, tmp_path / "exchange" / "one").update == 1


def test_what_cannot_be_exported_is_said_at_once(make_trainer, tmp_path):
    trainer = make_trainer()
    (tmp_path / "file").write_text("")
    for name in ("file/new", "file"):
        with pytest.raises(InputError, match=name):
            export_update(trainer, tmp_path / name)
    assert "export" not in trainer.parts
    export_update(trainer, tmp_path / "new")
    with pytest.raises(InputError, match="new is still waiting"):
        export_update(trainer, tmp_path / "second")
    with pytest.raises(InputError, match="elastic_reset_every"):
        export_update(make_trainer(elastic_reset_every=2), tmp_path / "elastic")
    corrected = make_trainer()
    corrected.args.use_vllm = True  # without the engine
    with pytest.raises(InputError, match="set vllm_importance_sampling_correction: false"):
        export_update(corrected, tmp_path / "corrected")
    corrected.args.vllm_importance_sampling_correction = False
    export_update(corrected, tmp_path / "corrected")
    momentum = make_trainer(optim="sgd")
    export_update(momentum, tmp_path / "sgd")
    with pytest.raises(InputError, match="SGD"):
        momentum.train()


# -------------------------------------------------------------------------------------------------------------- import


def outputs_of(trainer, change=None):
    """Outputs that fit the trainer, filled with numbers of their own."""
    state = live_state(trainer)
    for kind in STATE:
        for place, name in enumerate(state[kind]):
            state[kind][name] = torch.full_like(state[kind][name], place + 1.0 + 100.0 * STATE.index(kind))
    groups = trainer.optimizer.param_groups
    by_param = {param: name for name, param in trainer.model.named_parameters()}
    names = [by_param[param] for group in groups for param in group["params"]]
    outputs = UpdateOutputs(**state, names=names, update=5, inputs="", metrics={})
    if change is not None:
        change(outputs)
    return outputs


def test_an_import_sets_parameters_and_state_in_place(run, tmp_path):
    trainer = run(max_steps=1)
    storage = {param: param.data_ptr() for group in trainer.optimizer.param_groups for param in group["params"]}
    outputs = outputs_of(trainer)
    write(outputs, tmp_path / "x")
    import_update(trainer, tmp_path / "x")
    found = live_state(trainer)
    for kind in STATE:
        for name in outputs.names:
            assert torch.equal(found[kind][name], getattr(outputs, kind)[name]), (kind, name)
    assert all(param.data_ptr() == where for param, where in storage.items())


def test_an_import_into_a_new_optimizer_makes_the_state_that_torch_would(make_trainer, run, tmp_path):
    """The update after it is that of the trainer from which the state comes."""
    trained = run(max_steps=1)
    state = live_state(trained)
    outputs = outputs_of(trained)
    for kind in STATE:
        setattr(outputs, kind, state[kind])
    write(outputs, tmp_path / "x")
    fresh = make_trainer(max_steps=1)
    fresh.create_optimizer()
    import_update(fresh, tmp_path / "x")
    gradients = {name: torch.randn_like(value) for name, value in state["parameters"].items()}
    for trainer in (trained, fresh):
        for group in trainer.optimizer.param_groups:
            group["lr"] = 1e-3
        for name, param in trainer.model.named_parameters():
            param.grad = gradients[name].clone() if name in gradients else None
        trainer.optimizer.step()
    first = live_state(trained)
    second = live_state(fresh)
    for kind in STATE:
        for name in outputs.names:
            assert torch.equal(first[kind][name], second[kind][name]), (kind, name)


# What becomes of the last tensor of a kind.
MISFITS = [
    ("parameters", lambda tensor: torch.zeros(2, 2)),
    ("exp_avg", lambda tensor: torch.full_like(tensor, 1e300, dtype=torch.float64)),  # which float32 does not hold
    ("exp_avg", lambda tensor: tensor.index_fill(0, torch.tensor([0]), float("nan"))),
    ("exp_avg_sq", lambda tensor: tensor.index_fill(0, torch.tensor([0]), -1e-9)),  # no Adam has such numbers
    ("steps", lambda tensor: tensor + 0.5),
]


def test_outputs_that_are_not_this_trainer_s_change_nothing(run, tmp_path):
    trainer = run(max_steps=1)
    before = live_state(trainer)
    names = outputs_of(trainer).names

    def assert_refused(outputs, named):
        with pytest.raises(InputError, match=f"tensor {re.escape(named)} "):
            write(outputs, tmp_path / "x")
            import_update(trainer, tmp_path / "x")
        after = live_state(trainer)
        assert all(torch.equal(after[kind][name], before[kind][name]) for kind in STATE for name in names), named

    for kind, change in MISFITS:
        outputs = outputs_of(trainer)
        state = getattr(outputs, kind)
        state[names[-1]] = change(state[names[-1]])
        assert_refused(outputs, f"{kind}/{names[-1]}")
    for listed, named in ((names[:-1], names[-1]), ([names[1], names[0], *names[2:]], names[1])):
        outputs = outputs_of(trainer)
        outputs.names = listed
        assert_refused(outputs, f"parameters/{named}")


class Imports(TrainerCallback):
    """Imports outputs of update 3 in every step, in the place of torch's update."""

    def __init__(self, folder):
        self.folder = folder
        self.trainer = None
        self.refused = []

    def on_optimizer_step(self, args, state, control, **kwargs):
        outputs = outputs_of(self.trainer, lambda outputs: setattr(outputs, "update", 3))
        write(outputs, self.folder)
        try:
            import_update(self.trainer, self.folder)
        except InputError:
            self.refused.append(state.global_step + 1)


def test_while_it_trains_a_trainer_takes_the_outputs_of_no_other_update(make_trainer, tmp_path):
    """Of its last one or its next one; before its first it takes any, as a run that begins with an engine's state."""
    callback = Imports(tmp_path / "x")
    trainer = callback.trainer = make_trainer(max_steps=6, trainer_kwargs={"callbacks": [callback]})
    trainer.train()
    assert callback.refused == [2, 5, 6]


def test_outputs_beside_other_inputs_are_refused(exporting, tmp_path):
    trainer, callback = exporting(max_steps=1)
    write(outputs_of(trainer), callback.folder / "1")
    with pytest.raises(InputError, match="other inputs"):
        import_update(trainer, callback.folder / "1")


def test_a_tool_s_answer_is_context_and_no_part_of_the_loss(make_trainer, tools_model, tmp_path):
    """
    The reference of a new LoRA is the model itself, so that its log-probabilities come from the files and the model:
    every completion token up to the last with mask 1 is attended to, a tool's answer too.
    """
    tokenizer = AutoTokenizer.from_pretrained(tools_model)
    callback = EveryUpdate(tmp_path / "exchange")
    kwargs = {"tools": [add], "processing_class": tokenizer, "callbacks": [callback]}
    keys = KEYS | {"max_steps": 1, "beta": 0.2, "temperature": 0.7}
    trainer = speaks(make_trainer(model=tools_model, reward=rewarded, trainer_kwargs=kwargs, **keys))
    callback.trainer = trainer
    trainer.train()
    rollout = read(Rollout, callback.folder / "1")
    mask = rollout.completion_mask.bool()
    reached = mask.flip(1).cumsum(1).flip(1) > 0
    answers = reached & ~mask
    assert answers.any()
    assert "<tool_response>" in tokenizer.decode(rollout.completion_ids[answers])
    model = AutoModelForCausalLM.from_pretrained(tools_model)
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1)

    def scored(attended):
        with torch.no_grad():
            logits = model(ids, attention_mask=torch.cat([rollout.prompt_mask, attended], dim=1)).logits / 0.7
        return logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[:, -mask.shape[1] :, 0][mask]

    torch.testing.assert_close(scored(reached), rollout.logp_ref[mask], rtol=1e-4, atol=1e-4)
    assert (scored(mask) - rollout.logp_ref[mask]).abs().max() > 0.1
