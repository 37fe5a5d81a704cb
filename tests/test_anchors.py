"""The anchor to the base policy, in A and in B alike, and the adaptive coefficient of each anchor."""

import pytest
import torch
from run_record import read_rows as rows

from trl_prorl.objective.anchors import next_coefficient


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_alone_it_is_a_reference_that_never_moves(run, largest_difference, lora):
    rate = {"learning_rate": 5e-3 if lora else 5e-4}
    base = run(lora=lora, beta_base=0.5, max_steps=6, **rate)
    control = run(lora=lora, beta=0.5, max_steps=6, **rate)
    assert largest_difference(base, control) < 2e-6
    of_base, of_control = rows(base), rows(control)
    assert [r["kl_base"] for r in of_base] == pytest.approx([r["kl_ref"] for r in of_control], abs=1e-6)
    assert [r["base_forward_calls"] for r in of_base] == [1, 0] * 3
    assert [r["ref_forward_calls"] for r in of_base] == [0] * 6
    assert [r["base_forward_calls"] for r in of_control] == [0] * 6


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("keys", [{"beta": 0.2, "ref_reset_every": 2}, {"beta_old": 0.2}], ids=["A", "B"])
def test_beside_another_anchor_it_holds_the_policy_to_where_it_began(run, largest_difference, lora, keys):
    keys = {"lora": lora, "max_steps": 6, "learning_rate": 5e-3 if lora else 5e-4, **keys}
    both, alone = run(beta_base=0.5, **keys), run(**keys)
    assert largest_difference(both, alone) > 1e-5
    kl = [r["kl_base"] for r in rows(both)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and min(kl[1:]) > 1e-5  # never reset, unlike kl_ref
    assert sum(r["base_forward_calls"] for r in rows(both)) == 3


def test_base_is_the_adapter_that_training_began_with(run, trained_adapter):
    model = trained_adapter()
    trainer = run(model=model, lora=False, beta=0.1, ref_reset_every=2, beta_base=0.1, max_steps=4)
    assert set(trainer.accelerator.unwrap_model(trainer.model).peft_config) == {"default", "ref", "base"}
    begun = trained_adapter().state_dict()
    for name in (name for name in model.state_dict() if ".base." in name):
        param = model.get_parameter(name)
        assert not param.requires_grad and torch.equal(param, begun[name.replace(".base.", ".default.")])
    assert rows(trainer)[0]["kl_base"] == pytest.approx(0.0, abs=1e-6)


def test_it_acts_on_every_nth_generation_batch(run):
    trainer = run(beta_old=0.1, beta_base=0.5, base_anchor_every=3, max_steps=12)
    assert [r["base_forward_calls"] for r in rows(trainer)] == [1, 0, 0, 0, 0, 0] * 2
    assert ["kl_base" in r for r in rows(trainer)] == [True, True, False, False, False, False] * 2


def test_the_next_coefficient_by_hand():
    """On target, above it, and clipped on both sides; it stays positive."""
    found = [next_coefficient(1.0, kl, target=0.1, steps=2, horizon=100) for kl in (0.1, 0.11, 0.5, 0.0)]
    assert found == pytest.approx([1.0, 1 + 0.1 * 2 / 100, 1 + 0.2 * 2 / 100, 1 - 0.2 * 2 / 100])
    assert next_coefficient(1.0, 0.0, target=0.1, steps=1000, horizon=10) == 0.5


@pytest.mark.parametrize("name, measure", [("beta", "kl_ref"), ("beta_old", "kl_old"), ("beta_base", "kl_base")])
def test_the_active_anchor_follows_its_own_kl(run, name, measure):
    resets = 4 if name == "beta" else 0
    trainer = run(kl_target=1e-3, kl_horizon=5, max_steps=8, ref_reset_every=resets, **{name: 0.5})
    found, expected = rows(trainer), 0.5
    for first, second in zip(found[::2], found[1::2], strict=True):  # two steps of each generation
        assert first["beta"] == second["beta"] == pytest.approx(expected)
        mean = (first[measure] + second[measure]) / 2
        expected = next_coefficient(expected, mean, 1e-3, steps=2, horizon=5)
    assert found[-1]["beta"] != found[0]["beta"]
    assert getattr(trainer.args, name) == 0.5
