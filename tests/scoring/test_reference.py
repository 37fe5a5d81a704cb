"""Anchors: a reference that moves, the base that does not, and the average of Elastic Reset."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from tiny_run import load_with_new_adapter
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.extras.elastic import ElasticResets
from trl_prorl.kl import next_coefficient
from trl_prorl.reference import AdapterReference, SnapshotReference
from trl_prorl.run.meter import StageTimer


def perturbed(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.01 * torch.randn(param.shape, generator=generator))
    return model


@pytest.fixture(params=["adapter", "adapter of a quantised model", "snapshot"])
def reference(request, tiny_model, trained_adapter):
    if request.param != "snapshot":
        model = trained_adapter()
        model.add_adapter("ref", model.peft_config["default"])
        reference = AdapterReference(perturbed(model, 1))
        if request.param != "adapter":
            for _, policy in reference.pairs():
                policy.data = policy.data.bfloat16()  # as TRL does; `ref` stays in fp32
        return reference
    policy, ref = (perturbed(AutoModelForCausalLM.from_pretrained(tiny_model), seed) for seed in (1, 2))
    return SnapshotReference(policy, ref)


@pytest.mark.parametrize("mix", [0.0, 0.25, 1.0])
def test_mix_by_hand(reference, mix):
    before = [(ref.detach().clone(), policy.detach().clone()) for ref, policy in reference.pairs()]
    assert any(not torch.equal(ref, policy.to(ref.dtype)) for ref, policy in before)
    reference.move(mix)
    for (ref, policy), (old, same) in zip(reference.pairs(), before, strict=True):
        assert torch.equal(policy, same)
        assert ref.dtype == old.dtype
        same = same.to(ref.dtype)
        assert torch.allclose(ref, mix * same + (1 - mix) * old, atol=1e-7)
        if mix == 1.0:
            assert torch.equal(ref, same)


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


def test_the_next_coefficient_by_hand():
    """On target, above it, and clipped on both sides; it stays positive."""
    found = [next_coefficient(1.0, kl, target=0.1, steps=2, horizon=100) for kl in (0.1, 0.11, 0.5, 0.0)]
    assert found == pytest.approx([1.0, 1 + 0.1 * 2 / 100, 1 + 0.2 * 2 / 100, 1 - 0.2 * 2 / 100])
    assert next_coefficient(1.0, 0.0, target=0.1, steps=1000, horizon=10) == 0.5


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


def elastic_resets(values, ema, dtype=torch.float32):
    """The part for a policy of one parameter, with a reset at every step."""
    policy = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor(values, dtype=dtype))})
    args = SimpleNamespace(elastic_reset_every=1, elastic_ema=ema)
    return policy["w"], ElasticResets(args, policy, StageTimer(torch.device("cpu")), 1)


def test_average_and_reset_by_hand(tmp_path):
    policy, elastic = elastic_resets([1.0, 2.0], 0.9)
    policy.data.copy_(torch.tensor([2.0, 4.0]))
    elastic.on_step_end(1, None)
    assert elastic.average["w"].tolist() == pytest.approx([1.1, 2.2])
    elastic.save(tmp_path)
    assert elastic.on_generation(1)["event"] == "elastic_reset"
    assert policy.tolist() == pytest.approx([1.1, 2.2])
    assert elastic.average["w"].tolist() == [1.0, 2.0]
    _, again = elastic_resets([0.0, 0.0], 0.9)
    again.load(tmp_path, {})
    assert again.average["w"].tolist() == pytest.approx([1.1, 2.2])
    assert again.initial["w"].tolist() == [1.0, 2.0]


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


def test_small_steps_are_not_lost_in_bf16():
    """300 steps of 0.01 of the way to 1.05: 1 + 0.05 (1 − 0.99³⁰⁰) = 1.0475; a bf16 average would stay at 1."""
    policy, elastic = elastic_resets([1.0] * 3, 0.99, torch.bfloat16)
    policy.data.fill_(1.05)
    for step in range(300):
        elastic.on_step_end(step, None)
    exact = 1 + (policy[0].item() - 1) * (1 - 0.99**300)
    assert elastic.average["w"].tolist() == pytest.approx([exact] * 3, rel=1e-5)
    elastic.on_generation(300)
    assert policy.dtype == torch.bfloat16
    assert policy[0].item() == pytest.approx(exact, rel=2**-8)
