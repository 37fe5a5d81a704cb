"""A new adapter on a trained one, whose policy is reference and base: TRL on the merged model is the control."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoraConfig
from tiny_run import BEST, LORA, QUESTIONS, disturb_adapter, load_adapter, logits, new_trained_adapter
from trl import GRPOTrainer

from trl_prorl import evaluate
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.models import base_point, load_point
from trl_prorl.extras.growth import list_factors
from trl_prorl.extras.stacking import check_optimizer_by_entry
from trl_prorl.interchange import export_update
from trl_prorl.launch.plan import Plan


RANK = 3  # of the trained adapter; the new one's is 4
SFT = {**LORA, "r": RANK, "lora_alpha": 5}
LARGE = {"learning_rate": 2e-2}
ARMS = {
    "control": {"beta": 0.3},
    "A": {"beta": 0.3, "ref_reset_every": 2},
    "base anchor": {"beta_base": 0.3},
    "B": {"beta_old": 0.3},
}


@pytest.fixture(scope="module")
def sft(tiny_model, tmp_path_factory):
    """The folder of a trained adapter, whose policy is not the model below."""
    folder = tmp_path_factory.mktemp("sft")
    new_trained_adapter(tiny_model, **SFT).save_pretrained(folder)
    return folder


@pytest.fixture
def upon(make_trainer, tiny_model, sft):
    """A function that makes a trainer of a new adapter upon the trained one."""

    def make(adapter=sft, peft_config=None, **keys):
        peft_config = peft_config or LoraConfig(**LORA)
        kwargs = {"peft_config": peft_config, **keys.pop("trainer_kwargs", {})}
        return make_trainer(model=load_adapter(tiny_model, adapter), trainer_kwargs=kwargs, **{**LARGE, **keys})

    return make


@pytest.fixture
def sft_logits(tiny_model, sft):
    return logits(load_adapter(tiny_model, sft))


def far(one, other):
    """The largest difference."""
    return (one - other).abs().max().item()


def new_ranks(model):
    """The trained factors of a model's adapter, without the first ranks where it has more than the new one's."""
    found = {}
    for factor in list_factors(model):
        if factor.adapter == "default":
            weight = factor.linear.weight.detach()
            found[factor.name] = weight.narrow(factor.axis, weight.shape[factor.axis] - 4, 4).clone()
    return found


def test_it_trains_as_trl_does_a_new_adapter_on_the_merged_model(run, upon, tiny_model, sft, tmp_path):
    """TRL's own advice. Its reference is the merged model, without an adapter."""
    load_adapter(tiny_model, sft).merge_and_unload().save_pretrained(tmp_path / "merged")
    theirs = run(GRPOTrainer, model=str(tmp_path / "merged"), beta=0.3, max_steps=6, **LARGE)
    ours = upon(beta=0.3, max_steps=6)
    ours.train()
    found = new_ranks(ours.model)
    control = new_ranks(theirs.model)
    assert found.keys() == control.keys()
    begun = new_ranks(upon(beta=0.3).model)
    assert max(far(control[name], begun[name]) for name in control) > 0.05
    assert max(far(found[name], control[name]) for name in control) < 1e-4
    logged = [[row for row in trainer.state.log_history if "kl" in row] for trainer in (ours, theirs)]
    assert len(logged[0]) == len(logged[1]) == 6
    for mine, other in zip(*logged, strict=True):
        for name in ("loss", "kl", "grad_norm", "reward", "entropy"):
            if name in other:  # once a generation
                assert mine[name] == pytest.approx(other[name], abs=2e-5, rel=1e-3)
    assert logged[0][-1]["kl"] > 1e-3


def counts_entries_alone(cls):
    """Whether ranks without gradients leave the updates of the others as they are, by trying."""
    ends = []
    for frozen in (0, 3):
        new = torch.linspace(-1, 1, 12).view(4, 3)
        param = torch.nn.Parameter(torch.cat([torch.zeros(frozen, 3), new]))
        optimizer = cls([param], lr=0.1)
        for step in range(1, 4):
            param.grad = torch.cat([torch.zeros(frozen, 3), (new * step).cos()])
            optimizer.step()
        ends.append(param.detach()[frozen:])
    return torch.allclose(*ends, rtol=1e-5, atol=1e-6)


OPTIMIZERS = sorted(set(dir(torch.optim)) - {"LBFGS", "Optimizer", "SparseAdam"})  # not for gradients of tensors


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name[0].isupper()])
def test_an_optimizer_is_refused_if_frozen_ranks_change_the_updates_of_the_others(name):
    cls = getattr(torch.optim, name)
    given = cls([torch.nn.Parameter(torch.zeros(2, 2))], lr=0.1)
    with nullcontext() if counts_entries_alone(cls) else pytest.raises(ValueError, match=f"{name}'.* a peft_config"):
        check_optimizer_by_entry("adamw_torch", given)


def test_by_the_key_too(upon):
    for optim in ("adafactor", "adamw_8bit", "galore_adamw"):
        with pytest.raises(ValueError, match=f"optim='{optim}'.* a peft_config"):
            upon(beta=0.3, optim=optim)


@pytest.mark.parametrize("arm", ARMS)
def test_reference_and_base_are_the_trained_policy_and_the_file_is_the_new_one(upon, tiny_model, sft_logits, arm):
    trainer = upon(**ARMS[arm], weight_decay=0.5)
    assert far(logits(trainer.model), sft_logits) < 1e-5
    names = [anchor.name for anchor in (trainer.reference, trainer.base) if anchor is not None]
    assert len(names) == (arm != "B")
    for name in names:
        assert far(logits(trainer.model, name), sft_logits) < 1e-5
    trainer.train()
    assert far(logits(trainer.model), sft_logits) > 0.1
    if arm in ("control", "base anchor"):
        assert far(logits(trainer.model, names[0]), sft_logits) < 1e-5
    with trainer.initial_adapter.in_place():
        assert far(logits(trainer.model), sft_logits) < 1e-5
    trainer.save_model()
    assert Path(trainer.run_dir, "base_adapter", "adapter_model.safetensors").is_file()
    saved = load_adapter(tiny_model, trainer.args.output_dir)
    assert saved.peft_config["default"].r == RANK + 4
    assert saved.peft_config["default"].base_model_name_or_path == tiny_model
    assert far(logits(saved), logits(trainer.model)) < 1e-6
    assert far(logits(saved.merge_and_unload()), logits(trainer.model)) < 1e-4


def test_the_trained_ranks_stay_to_the_bit_with_weight_decay_and_every_treatment(upon):
    trainer = upon(**ARMS["A"], optimizer_reset="soft", weight_decay=0.5, max_steps=6)
    frozen = trainer.parts["frozen_ranks"]
    begun = {factor.name: factor.linear.weight.detach().clone() for factor in list_factors(trainer.model)}
    trainer.train()
    for factor in list_factors(trainer.model):
        now = factor.linear.weight.detach()
        assert torch.equal(now.narrow(factor.axis, 0, frozen.rank), begun[factor.name].narrow(factor.axis, 0, RANK))
        assert not torch.equal(now, begun[factor.name])
    assert frozen.rank == RANK


def test_a_resume_is_exact(upon):
    keys = {**ARMS["A"], "max_steps": 5, "save_strategy": "steps", "save_steps": 1, "fast": True}
    whole = upon(**keys)
    whole.train()
    end = dict(whole.model.named_parameters())
    for step in (2, 3):
        again = upon(**keys)
        again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, f"checkpoint-{step}")))
        found = dict(again.model.named_parameters())
        assert found.keys() == end.keys() and all(torch.equal(found[name], end[name]) for name in end), step


def test_a_resume_upon_another_trained_adapter_is_refused(upon, run, tiny_model, tmp_path):
    keys = {"beta": 0.3, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    first = upon(**keys)
    first.train()
    disturb_adapter(new_trained_adapter(tiny_model, **SFT)).save_pretrained(tmp_path / "other")
    for allowed, words in ((False, "frozen ranks of the adapter"), (True, "cannot be changed")):
        again = upon(adapter=tmp_path / "other", **keys, allow_config_change=allowed)
        with pytest.raises(ValueError, match=words):
            again.train(resume_from_checkpoint=str(Path(first.args.output_dir, "checkpoint-1")))


def test_an_evaluation_compares_with_the_trained_policy(upon, tiny_model, sft, make_trainer):
    """In memory and from the files; also where the trained adapter itself is trained on."""
    alone = make_trainer(
        model=load_adapter(tiny_model, sft, is_trainable=True), lora=False, beta=0.3, ref_reset_every=2, **LARGE
    )
    plain = make_trainer(model=load_adapter(tiny_model, sft, is_trainable=True), lora=False, learning_rate=0.0)
    drawn = []
    for trainer in (plain, upon(beta=0.3, ref_reset_every=2), alone):
        trainer.train()
        trainer.save_model()
        seen = []
        judge = lambda completion, row, seen=seen: seen.append(completion) or True  # noqa: E731
        evaluate(trainer, QUESTIONS["eval_dataset"], judge, n=4, k=[1])
        drawn.append(seen[2:])  # the first two try the verifier
        base = load_point(base_point(Path(trainer.args.output_dir)), {"model_name_or_path": tiny_model})
        assert far(logits(base), logits(load_adapter(tiny_model, sft))) < 1e-5
    assert drawn[1][:8] == drawn[2][:8] == drawn[0][:8] == drawn[0][8:16]  # the base's come first
    assert drawn[1][8:16] != drawn[1][:8]


def test_the_best_checkpoint_comes_back(upon, tiny_model):
    trainer = upon(**{**BEST, "beta": 0.3, "max_steps": 4}, trainer_kwargs=QUESTIONS)
    trainer.train()
    best = load_adapter(tiny_model, trainer.state.best_model_checkpoint)
    assert far(logits(best), logits(trainer.model)) < 1e-6


def test_it_may_cover_more_layers_and_grow(upon, tiny_model, sft_logits):
    more = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj", "o_proj"], use_rslora=True)
    trainer = upon(peft_config=more, beta=0.3, lora_growth_every=2, lora_growth_step=2, max_steps=4)
    assert far(logits(trainer.model), sft_logits) < 1e-5
    trainer.train()
    with trainer.initial_adapter.in_place():
        assert far(logits(trainer.model), sft_logits) < 1e-5
    trainer.save_model()
    config = json.loads(Path(trainer.args.output_dir, "adapter_config.json").read_text())
    assert config["r"] == RANK + 4 + 2
    saved = load_adapter(tiny_model, trainer.args.output_dir)
    assert far(logits(saved), logits(trainer.model)) < 1e-5
    assert any(factor.linear.weight[:, -2:].any() for factor in list_factors(trainer.model) if factor.side == "B")


def test_bf16_weights_are_not_rounded(make_trainer, tiny_model, sft):
    model = load_adapter(tiny_model, sft, torch.bfloat16)
    before = {name: param.detach().clone() for name, param in model.base_model.model.named_parameters()}
    sft_policy = logits(model)
    trainer = make_trainer(model=model, beta=0.3)
    for name, param in trainer.model.base_model.model.named_parameters():
        if "lora_" not in name:
            assert param.dtype == torch.bfloat16
            assert torch.equal(param, before[name])
    assert far(logits(trainer.model), sft_policy) < 1e-1
    assert torch.equal(logits(trainer.model), logits(trainer.model, "ref"))


REFUSED = {
    "IA3": (IA3Config(), "IA3"),
    "fewer layers": (LoraConfig(target_modules=["q_proj"]), "down_proj, v_proj"),
    "a bias": (LoraConfig(**LORA, lora_bias=True), "lora_bias"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_new_adapter_that_cannot_lie_upon_it_is_refused(upon, case):
    config, named = REFUSED[case]
    with pytest.raises(ValueError, match=f"a peft_config on a trained adapter.*{named}"):
        upon(peft_config=config, beta=0.3)


def test_its_updates_are_not_exported(upon, tmp_path):
    with pytest.raises(InputError, match="ranks of the trained adapter"):
        export_update(upon(), tmp_path / "exchange")


def set_two(model):
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])


def quantise(model):
    model.get_base_model().hf_quantizer = object()


@pytest.mark.parametrize(
    ("change", "named"),
    [(set_two, "second"), (quantise, "quantised"), (lambda model: model.merge_adapter(), "unmerge_adapter")],
)
def test_a_model_that_cannot_bear_it_is_refused(make_trainer, monkeypatch, tiny_model, sft, change, named):
    monkeypatch.setattr(Plan, "wrap", lambda plan: pytest.fail("it is taken apart"))
    model = load_adapter(tiny_model, sft)
    change(model)
    with pytest.raises(ValueError, match=named):
        make_trainer(model=model, beta=0.3)
