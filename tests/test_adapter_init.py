"""Initialisations that change the model run once: what the policy starts from, what is saved, what a resume finds."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import layer as lora_layer
from peft.tuners.lora.config import CordaConfig, KasaConfig, LoraGAConfig
from peft.tuners.lora.corda import preprocess_corda
from peft.tuners.lora.loraga import preprocess_loraga
from peft.utils import loftq_utils
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from eval.samples.models import load_point
from eval.samples.points import Point
from trl_prorl.adapters.initialisation import doubled, halved
from trl_prorl.adapters.mixin import logger as adapter_logger


INITS = (True, False, "gaussian", "eva", "olora", "pissa", "pissa_niter_2", "corda", "orthogonal", "mica", "lora_ga")
INITS = (*INITS, "loftq", "kasa")
CONVERTED = ("olora", "pissa", "pissa_niter_2", "corda", "lora_ga")
ARMS = {
    "A": {"beta": 0.1, "ref_reset_every": 2},
    "C": {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "hard"},
    "base": {"beta_base": 0.1},
    "A and base": {"beta": 0.1, "ref_reset_every": 2, "beta_base": 0.1},
}
TOKENS = torch.tensor([[70, 84, 90, 101, 33, 65, 77, 120]])


@pytest.fixture(autouse=True)
def quantise_on_the_cpu(monkeypatch):
    """PEFT's LoftQ asks for a GPU by name; its code runs as well without."""
    source = inspect.getsource(loftq_utils.loftq_init).replace('"cuda"', '"cpu"')
    names = dict(vars(loftq_utils))
    exec(source, names)
    monkeypatch.setattr(lora_layer, "loftq_init", names["loftq_init"])


def prepared(tiny_model, init, **others):
    """A model and a configuration as a user makes them: measured beforehand where an initialisation needs it."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    keys = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    keys |= {"init_lora_weights": init} | others
    if init == "kasa":
        keys |= {"init_lora_weights": True, "kasa_config": KasaConfig()}
    if init == "corda":
        keys["corda_config"] = CordaConfig(corda_method="kpm")
    if init == "lora_ga":
        keys["lora_ga_config"] = LoraGAConfig()
    if init == "loftq":
        keys["loftq_config"] = {"loftq_bits": 4, "loftq_iter": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(**keys)
    tokens = torch.randint(33, 122, (1, 160), generator=torch.Generator().manual_seed(0))
    if init == "corda":
        preprocess_corda(model, config, run_model=lambda: model(tokens))
    if init == "lora_ga":
        preprocess_loraga(model, config, lambda: model(input_ids=tokens, labels=tokens).loss.backward())
        model.zero_grad()
    return {"model": model, "lora": False, "trainer_kwargs": {"peft_config": config}}


def logps(model):
    policy = model.get_base_model() if isinstance(model, PeftModel) else model
    with torch.no_grad():
        hidden = policy.model(TOKENS).last_hidden_state
        return torch.log_softmax(policy.get_output_embeddings()(hidden), dim=-1)


@pytest.mark.parametrize("init", INITS)
def test_the_policy_starts_where_trl_s_does(make_trainer, tiny_model, init):
    theirs = make_trainer(GRPOTrainer, **prepared(tiny_model, init))
    begun, weights = logps(theirs.model), dict(theirs.model.named_parameters())
    for arm, keys in ARMS.items():
        trainer = make_trainer(**prepared(tiny_model, init), **keys)
        assert torch.equal(logps(trainer.model), begun), arm
        for name, param in trainer.model.named_parameters():
            if "base_layer" in name:
                assert torch.equal(param, weights[name]), (arm, name)
        for anchor in (trainer.reference, trainer.base):
            if anchor is not None:
                with anchor.active(trainer.model) as scorer:
                    assert torch.allclose(logps(scorer), begun, atol=1e-6), arm
    assert trainer.model.peft_config["default"].init_lora_weights == (True if init == "kasa" else init)


def test_a_model_that_was_wrapped_before_keeps_its_weights(make_trainer, tiny_model):
    """TRL's own `ref` too is a copy, whatever arm."""
    given = prepared(tiny_model, "pissa")
    wrapped = get_peft_model(given["model"], given["trainer_kwargs"]["peft_config"])
    begun = logps(wrapped)
    trainer = make_trainer(model=wrapped, lora=False, beta=0.1)
    assert torch.equal(logps(trainer.model), begun)
    with trainer.reference.active(trainer.model) as scorer:
        assert torch.equal(logps(scorer), begun)


@pytest.mark.parametrize("init", CONVERTED + ("loftq", "kasa", "mica"))
def test_what_is_saved_loads_onto_the_given_model(run, tiny_model, init, tmp_path):
    trainer = run(**prepared(tiny_model, init), **ARMS["A and base"])
    trainer.save_model(str(tmp_path))
    trained = logps(trainer.model)
    loaded = load_point(Point("trained", 4, tmp_path), {"model_name_or_path": tiny_model})  # as eval.passk does
    assert torch.allclose(logps(loaded), trained, atol=3e-5)
    assert torch.allclose(logps(loaded.merge_and_unload()), trained, atol=3e-5)
    assert torch.allclose(logps(trainer.model.merge_and_unload()), trained, atol=3e-5)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert (logps(base) - trained).abs().max() > 1e-3  # it has moved


@pytest.mark.parametrize("init", ("pissa", "pissa_niter_2", "corda", "lora_ga", "loftq"))
def test_a_resume_ends_where_the_run_would_have(make_trainer, weights, tiny_model, init):
    keys = {**ARMS["A and base"], "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(**prepared(tiny_model, init), **keys)
    whole.train()
    resumed = make_trainer(**prepared(tiny_model, init), **keys)
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-2")
    a, b = weights(whole), weights(resumed)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(logps(whole.model), logps(resumed.model))


def test_an_initialisation_that_comes_out_otherwise_is_corrected(make_trainer, tiny_model):
    """Singular vectors have the signs, and random ones the values, of the process that made them."""
    keys = {**ARMS["A"], "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(**prepared(tiny_model, "pissa"), **keys)
    whole.train()
    checkpoint = f"{whole.args.output_dir}/checkpoint-4"
    resumed = make_trainer(**prepared(tiny_model, "pissa_niter_0"), **keys, allow_config_change=True)
    begun = logps(resumed.model)
    resumed.train(resume_from_checkpoint=checkpoint)  # all steps are done
    assert torch.allclose(logps(resumed.model), logps(whole.model), atol=3e-5)
    assert (logps(resumed.model) - begun).abs().max() > 1e-3
    resumed.save_model()
    loaded = load_point(Point("", 4, Path(resumed.args.output_dir)), {"model_name_or_path": tiny_model})
    assert torch.allclose(logps(loaded), logps(whole.model), atol=3e-5)


def test_the_best_checkpoint_comes_back_as_it_was_trained(run, tiny_model, weights):
    trainer = run(**prepared(tiny_model, "pissa"), **ARMS["A"], save_strategy="steps", save_steps=2)
    kept = weights(trainer)
    trainer.state.best_model_checkpoint = f"{trainer.args.output_dir}/checkpoint-4"
    with torch.no_grad():
        for param in trainer.model.parameters():
            if param.requires_grad:
                param.zero_()
    trainer._load_best_model()
    assert all(torch.equal(kept[name], value) for name, value in weights(trainer).items())


@pytest.mark.parametrize("others", [{"use_rslora": True, "rank_pattern": {"q_proj": 2}}, {"use_dora": True}])
def test_patterns_of_ranks_and_dora_are_converted_too(run, tiny_model, others, tmp_path):
    trainer = run(**prepared(tiny_model, "pissa", **others), **ARMS["A"])
    trainer.save_model(str(tmp_path))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path)
    assert torch.allclose(logps(loaded), logps(trainer.model), atol=3e-5)


def test_doubled_by_hand():
    tensors = {"x.lora_A.weight": torch.tensor([[1.0, 2.0]]), "x.lora_B.weight": torch.tensor([[3.0], [4.0]])}
    initial = {"x.lora_A.weight": torch.tensor([[5.0, 6.0]]), "x.lora_B.weight": torch.tensor([[7.0], [8.0]])}
    both = doubled(tensors | {"x.lora_magnitude_vector": torch.ones(2)}, initial)
    assert both["x.lora_A.weight"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert both["x.lora_B.weight"].tolist() == [[3.0, -7.0], [4.0, -8.0]]
    # [3; 4][1 2] − [7; 8][5 6]
    assert (both["x.lora_B.weight"] @ both["x.lora_A.weight"]).tolist() == [[-32.0, -36.0], [-36.0, -40.0]]
    first, second = halved(both)
    assert all(
        torch.equal(first[name], tensors[name]) and torch.equal(second[name], initial[name]) for name in tensors
    )


@pytest.mark.parametrize(
    "init, wrapped, warned",
    [
        ("pissa", False, "Set ref_reset_every to more than max_steps"),
        ("corda", True, "Pass the model and a peft_config"),
    ],
)
def test_a_warning_names_what_cannot_be_right(make_trainer, tiny_model, monkeypatch, init, wrapped, warned):
    said = []
    monkeypatch.setattr(adapter_logger, "warning", lambda text, *values: said.append(text % values))
    given = prepared(tiny_model, init)
    if wrapped:
        given = {"model": get_peft_model(given["model"], given["trainer_kwargs"]["peft_config"]), "lora": False}
    make_trainer(**given, beta=0.1)
    assert len(said) == 1 and warned in said[0] and f"init_lora_weights='{init}'" in said[0]
    make_trainer(beta=0.1)
    assert len(said) == 1
