"""A live trainer: what is exported is what the update was made from, and an import is everything or nothing."""

import json

import pytest
import torch
from exchange import STATE, live_state
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from trl_prorl.errors import InputError
from trl_prorl.interchange import (
    Rollout,
    UpdateInputs,
    UpdateOutputs,
    export_update,
    import_update,
    read,
    write,
)


A_RESET = {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.25}


def test_an_export_does_not_change_the_training(exporting, run, weights):
    trained, _ = exporting(**A_RESET)
    plain = run(**A_RESET)
    theirs = weights(plain)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(trained).items())


def test_the_inputs_are_the_state_that_the_last_update_left(exporting):
    """So that a reset is in the inputs as what it does, and has not been done yet."""
    trainer, callback = exporting(max_steps=5, **A_RESET)
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
        assert inputs.update == number and inputs.growth is None and not inputs.new_rows


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
    assert export.done and norm > 0.02 and inputs.clip_norm == 0.01
    assert inputs.grad_norm == pytest.approx(norm, rel=1e-5)
    assert inputs.gradients.keys() == seen[1].keys()
    for name, grad in seen[1].items():
        torch.testing.assert_close(inputs.gradients[name] * (0.01 / (inputs.grad_norm + 1e-6)), grad)
    row = json.loads((trainer.run_dir / "metrics.jsonl").read_text().splitlines()[0])
    assert inputs.grad_norm == pytest.approx(row["grad_norm"])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_learning_rate_is_the_one_in_force(exporting, accumulation):
    """Of the schedule and of the re-warm-up, as the record has it; and with accumulated micro-batches."""
    keys = {"optimizer_reset": "hard", "optimizer_reset_rewarmup_steps": 4, "optimizer_reset_schedule": "keep"}
    keys |= {"beta": 0.1, "ref_reset_every": 2, "lr_scheduler_type": "linear"}
    trainer, callback = exporting(**keys, max_steps=4, gradient_accumulation_steps=accumulation)
    record = [json.loads(line) for line in (trainer.run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = []
    for row in record:
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
        assert len(rollout.advantages) == 16 and rollout.rewards.shape == (16, 1) and rollout.update == number
        assert rollout.group.unique().tolist() == [0, 1, 2, 3] and rollout.reward_functions == ["vowels"]
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
        assert rollout.logp_ref.shape == rollout.completion_ids.shape and (rollout.logp_ref <= 0.0).all()


def test_logp_old_is_the_one_of_the_buffer(exporting):
    """With two passes over a batch, the second reads the first's log-probabilities."""
    _, callback = exporting(beta=0.0, num_iterations=2, reuse_old_logps=True, max_steps=2)
    first, second = (read(Rollout, callback.folder / name) for name in ("1", "2"))
    order = [(second.completion_ids == row).all(dim=1).nonzero()[0].item() for row in first.completion_ids]
    torch.testing.assert_close(first.logp_old, second.logp_old[order])
    assert first.logp_ref is None and second.logp_ref is None


def test_full_fine_tuning(exporting):
    trainer, callback = exporting(lora=False, max_steps=1)
    inputs = read(UpdateInputs, callback.folder / "1")
    assert len(inputs.groups) == 2 and inputs.names == [name for g in inputs.groups for name in g["parameters"]]
    assert {group["weight_decay"] for group in inputs.groups} <= {0.0, trainer.args.weight_decay}
    assert set(inputs.names) == {name for name, _ in trainer.model.named_parameters()}


def test_a_step_that_is_left_out_is_not_exported(make_trainer, tmp_path):
    """`nonfinite: skip` makes no update; the export waits for the next one."""

    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            self.handles = [
                param.register_hook(lambda grad: grad * float("nan"))
                for param in model.parameters()
                if param.requires_grad and state.global_step == 0
            ]

        def on_step_end(self, args, state, control, **kwargs):
            for handle in self.handles:
                handle.remove()

    trainer = make_trainer(nonfinite="skip", max_steps=2, trainer_kwargs={"callbacks": [Poison()]})
    export = export_update(trainer, tmp_path / "exchange")
    trainer.train()
    assert export.done and read(UpdateInputs, tmp_path / "exchange").update == 2


class Writes(TrainerCallback):
    """Writes into a weight once the generation of a step has begun."""

    def __init__(self, parameter):
        self.parameter = parameter

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        with torch.no_grad():
            self.parameter.add_(1.0)


def test_weights_that_change_for_another_reason_are_not_exported(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    name, param = next(
        (name, p) for name, p in trainer.model.named_parameters() if "lora_B" in name and p.requires_grad
    )
    trainer.add_callback(Writes(param))
    export_update(trainer, tmp_path / "exchange")
    with pytest.raises(InputError, match="lora_B.*has changed since the last update"):
        trainer.train()
    assert list(tmp_path.glob("*exchange*")) == []


def test_what_cannot_be_exported_is_said_at_once(make_trainer, tmp_path):
    trainer = make_trainer()
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="there exists"):
        export_update(trainer, tmp_path / "there")
    with pytest.raises(InputError, match="form='torch'"):
        export_update(trainer, tmp_path / "new", form="torch")
    export_update(trainer, tmp_path / "new")
    with pytest.raises(InputError, match="still waits"):
        export_update(trainer, tmp_path / "second")
    elastic = make_trainer(elastic_reset_every=2)
    with pytest.raises(InputError, match="elastic_reset_every"):
        export_update(elastic, tmp_path / "elastic")
    momentum = make_trainer(optim="sgd")
    export_update(momentum, tmp_path / "sgd")
    with pytest.raises(InputError, match="SGD: only the state of torch's Adam"):
        momentum.train()


# -------------------------------------------------------------------------------------------------------------- import


def outputs_of(trainer, change=lambda outputs: None):
    """Outputs that fit the trainer, filled with numbers of their own."""
    state = live_state(trainer)
    for kind in STATE:
        for place, name in enumerate(state[kind]):
            state[kind][name] = torch.full_like(state[kind][name], place + 1.0 + 100.0 * STATE.index(kind))
    groups = trainer.optimizer.param_groups
    by_param = {param: name for name, param in trainer.model.named_parameters()}
    names = [by_param[param] for group in groups for param in group["params"]]
    outputs = UpdateOutputs(**state, names=names, update=5, inputs="", metrics={})
    change(outputs)
    return outputs


@pytest.mark.parametrize("form", ["plain", "noma"])
def test_an_import_sets_parameters_and_state_in_place(run, tmp_path, form):
    trainer = run(max_steps=1)
    storage = {param: param.data_ptr() for group in trainer.optimizer.param_groups for param in group["params"]}
    outputs = outputs_of(trainer)
    write(outputs, tmp_path / "x", form)
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
    first, second = live_state(trained), live_state(fresh)
    for kind in STATE:
        for name in outputs.names:
            assert torch.equal(first[kind][name], second[kind][name]), (kind, name)


def unlike(outputs):
    name = outputs.names[-1]
    for kind in ("parameters", "exp_avg", "exp_avg_sq"):
        getattr(outputs, kind)[name] = torch.zeros(2, 2)


def fewer(outputs):
    outputs.names = outputs.names[:-1]


def reordered(outputs):
    outputs.names = [outputs.names[1], outputs.names[0], *outputs.names[2:]]


def in_double(outputs):
    name = outputs.names[-1]
    outputs.parameters[name] = outputs.parameters[name].double()


@pytest.mark.parametrize("change", [unlike, fewer, reordered, in_double])
def test_outputs_of_another_model_change_nothing(run, tmp_path, change):
    trainer = run(max_steps=1)
    before, names = live_state(trainer), outputs_of(trainer).names
    write(outputs_of(trainer, change), tmp_path / "x")
    named = names[1] if change is reordered else names[-1]
    with pytest.raises(InputError, match=f"tensor parameters/{named}".replace(".", r"\.")) as caught:
        import_update(trainer, tmp_path / "x")
    assert "\n" not in str(caught.value)
    after = live_state(trainer)
    assert all(torch.equal(after[kind][name], before[kind][name]) for kind in STATE for name in names)


def test_a_damaged_last_tensor_changes_nothing(run, tmp_path):
    trainer = run(max_steps=1)
    before = live_state(trainer)
    outputs = outputs_of(trainer)
    write(outputs, tmp_path / "x")
    held = load_file(tmp_path / "x" / "outputs.safetensors")
    name = f"steps/{outputs.names[-1]}"
    save_file(held | {name: held[name] + 1}, tmp_path / "x" / "outputs.safetensors")
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        import_update(trainer, tmp_path / "x")
    after = live_state(trainer)
    assert all(torch.equal(after[kind][name], before[kind][name]) for kind in STATE for name in outputs.names)


def test_nan_is_refused_before_it_is_written(run, tmp_path):
    trainer = run(max_steps=1)
    outputs = outputs_of(trainer)
    outputs.exp_avg[outputs.names[0]].fill_(float("nan"))
    with pytest.raises(InputError, match="exp_avg/.* holds NaN"):
        write(outputs, tmp_path / "x")


def test_outputs_beside_other_inputs_are_refused(exporting, tmp_path):
    trainer, callback = exporting(max_steps=1)
    write(outputs_of(trainer), callback.folder / "1")
    with pytest.raises(InputError, match="of other inputs"):
        import_update(trainer, callback.folder / "1")
