"""Anchors: a reference that moves, the base that does not, and the average of Elastic Reset."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from tiny_run import load_with_new_adapter
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.kl import next_coefficient


def test_factors_of_an_embedding_are_part_of_the_adapter(run, tiny_model):
    """PEFT names them `lora_embedding_A.default`, with nothing behind: a reset must move them too."""
    targets = {"target_modules": ["q_proj", "embed_tokens"]}
    new = {"trainer_kwargs": {"peft_config": LoraConfig(r=4, lora_alpha=8, **targets)}}
    for keys in (new, {"lora": False, "model": load_with_new_adapter(tiny_model, **targets)}):
        trainer = run(beta=0.1, ref_reset_every=2, beta_base=0.1, max_steps=5, **keys)
        kl = read_rows(trainer)
        assert [row["kl_ref"] for row in kl[::2]] == pytest.approx([0.0] * 3, abs=1e-6)
        assert kl[0]["kl_base"] == pytest.approx(0.0, abs=1e-6)
        assert all(row["kl_ref"] > 1e-3 for row in kl[1::2])


ANCHORS = [{"beta": 0.1}, {"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}]


@pytest.mark.parametrize("keys", [*ANCHORS[1:], {"elastic_reset_every": 2}])
def test_an_adapter_of_another_name_and_two_at_once_are_refused(make_trainer, tiny_model, keys):
    config = LoraConfig(target_modules=["q_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config, adapter_name="policy")
    model.add_adapter("default", config)  # there, but not what is trained
    with pytest.raises(ValueError, match="active adapter is 'policy'"):
        make_trainer(model=model, lora=False, **keys)
    model.base_model.set_adapter(["default", "policy"])
    with pytest.raises(ValueError, match="active adapter is 'default', 'policy'"):
        make_trainer(model=model, lora=False, **keys)
    model.set_adapter("default")
    make_trainer(model=model, lora=False, **keys)


@pytest.mark.parametrize("keys", ANCHORS[1:])  # with a fixed reference alone, TRL decides
def test_trained_biases_of_which_there_is_no_second_copy_are_refused(make_trainer, keys):
    config = LoraConfig(target_modules=["q_proj"], bias="lora_only")
    with pytest.raises(ValueError, match="bias"):
        make_trainer(lora=False, trainer_kwargs={"peft_config": config}, **keys)


def test_trained_biases_without_a_reference_are_trained_as_trl_does(run, weights):
    keys = {"lora": False, "beta": 0.0, "max_steps": 2}
    keys["trainer_kwargs"] = {"peft_config": LoraConfig(target_modules=["q_proj"], bias="all")}
    trl, ours = (weights(run(cls, **keys)) for cls in (GRPOTrainer, ProRLTrainer))
    assert all(torch.equal(trl[name], ours[name]) for name in trl)


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_alone_it_is_a_reference_that_never_moves(run, largest_difference, lora):
    rate = {"learning_rate": 5e-3 if lora else 5e-4}
    base = run(lora=lora, beta_base=0.5, max_steps=6, **rate)
    control = run(lora=lora, beta=0.5, max_steps=6, **rate)
    assert largest_difference(base, control) < 2e-6
    of_base = read_rows(base)
    of_control = read_rows(control)
    assert [r["kl_base"] for r in of_base] == pytest.approx([r["kl_ref"] for r in of_control], abs=1e-6)
    assert [r["base_forward_calls"] for r in of_base] == [1, 0] * 3
    assert [r["ref_forward_calls"] for r in of_base] == [0] * 6
    assert [r["base_forward_calls"] for r in of_control] == [0] * 6


@pytest.mark.parametrize("lora, keys", [(True, {"beta": 0.2, "ref_reset_every": 2}), (False, {"beta_old": 0.2})])
def test_beside_another_anchor_it_holds_the_policy_to_where_it_began(run, largest_difference, lora, keys):
    keys = {"lora": lora, "max_steps": 6, "learning_rate": 5e-3 if lora else 5e-4, **keys}
    both = run(beta_base=0.5, **keys)
    alone = run(**keys)
    assert largest_difference(both, alone) > 1e-5
    kl = [r["kl_base"] for r in read_rows(both)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert min(kl[1:]) > 1e-5  # never reset, unlike kl_ref
    assert sum(r["base_forward_calls"] for r in read_rows(both)) == 3


def test_base_is_the_adapter_that_training_began_with(run, trained_adapter):
    model = trained_adapter()
    trainer = run(model=model, lora=False, beta=0.1, ref_reset_every=2, beta_base=0.1, max_steps=4)
    assert set(trainer.accelerator.unwrap_model(trainer.model).peft_config) == {"default", "ref", "base"}
    begun = trained_adapter().state_dict()
    for name in (name for name in model.state_dict() if ".base." in name):
        param = model.get_parameter(name)
        assert not param.requires_grad
        assert torch.equal(param, begun[name.replace(".base.", ".default.")])
    assert read_rows(trainer)[0]["kl_base"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name, measure", [("beta", "kl_ref"), ("beta_old", "kl_old"), ("beta_base", "kl_base")])
def test_the_active_anchor_follows_its_own_kl(run, name, measure):
    resets = 4 if name == "beta" else 0
    trainer = run(kl_target=1e-3, kl_horizon=5, max_steps=8, ref_reset_every=resets, **{name: 0.5})
    found = read_rows(trainer)
    expected = 0.5
    for first, second in zip(found[::2], found[1::2], strict=True):  # two steps of each generation
        assert first["beta"] == second["beta"] == pytest.approx(expected)
        mean = (first[measure] + second[measure]) / 2
        expected = next_coefficient(expected, mean, 1e-3, steps=2, horizon=5)
    assert found[-1]["beta"] != found[0]["beta"]
    assert getattr(trainer.args, name) == 0.5


def test_steps_without_a_measured_kl_count_for_the_horizon(run, resume):
    """π_base scores every third generation of two steps, which each have a KL."""
    keys = {"kl_target": 1e-6, "kl_horizon": 20, "beta_base": 0.5, "base_anchor_every": 3, "max_steps": 14}
    trainer = run(**keys, save_strategy="steps", save_steps=3)
    found = [row["beta"] for row in read_rows(trainer)]
    first = 0.5 * (1 + 0.2 * 2 / 20)
    second = first * (1 + 0.2 * 6 / 20)
    assert found == pytest.approx([0.5] * 2 + [first] * 6 + [second] * 6)
    for step in (3, 6):
        again = read_rows(resume(trainer, step, **keys))
        assert [row["beta"] for row in again] == found[-len(again) :]


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_in_training_the_policy_becomes_its_average(make_trainer, weights, lora):
    trainer = make_trainer(lora=lora, elastic_reset_every=2, elastic_ema=0.5, max_steps=3, num_iterations=2)
    elastic = trainer.parts["elastic"]
    snapshots = [weights(trainer)]
    after = []
    update = elastic.on_step_end
    boundary = elastic.on_generation

    def watched(step):
        event = boundary(step)
        after.extend([weights(trainer)] if event else [])
        return event

    elastic.on_step_end = lambda step, model: snapshots.append(weights(trainer)) or update(step, model)
    elastic.on_generation = watched
    trainer.train()
    start, first, second = snapshots[:3]
    (after,) = after
    for name in elastic.parameters:
        assert torch.allclose(after[name], 0.25 * start[name] + 0.25 * first[name] + 0.5 * second[name], atol=1e-6)
    (event,) = read_rows(trainer, "events.jsonl")
    assert (event["event"], event["step_requested"], event["step_applied"]) == ("elastic_reset", 2, 2)
