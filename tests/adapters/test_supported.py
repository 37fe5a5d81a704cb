"""Each kind of LoRA: what samples is what is trained, moved, saved, resumed and accelerated. Others train as TRL's."""

import pytest
import torch
from packed_models import MOE, build
from peft import (
    HRAConfig,
    IA3Config,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from peft.tuners.lora.config import EvaConfig, KasaConfig
from run_record import read_rows
from slow import slow_but
from tiny_run import LORA, TOKENS, load_adapter
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from trl_prorl.reference import AdapterReference, frozen_adapter


TARGETS = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
SAME_SIZE = {"target_modules": ["q_proj", "o_proj"]}  # all layers share VeRA's factors
PATTERNS = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}, "exclude_modules": ["down_proj"]}
SOME_LAYERS = {"layers_to_transform": [1], "layers_pattern": "layers"}
# Of every kind, with every option of it.
EXAMPLES = {
    "LoRA": LoraConfig(**LORA | {"lora_alpha": 16}, lora_dropout=0.1),  # which `disable_dropout` switches off
    "DoRA": LoraConfig(**LORA, use_dora=True),
    "rsLoRA": LoraConfig(**LORA, use_rslora=True, **PATTERNS, **SOME_LAYERS),
    "beside": LoraConfig(**LORA, modules_to_save=["norm"], trainable_token_indices=[33, 70, 71], lora_bias=True),
    "tied": LoraConfig(**LORA, modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "parameters": LoraConfig(**LORA, target_parameters=["o_proj.weight"]),
    # PEFT wraps one adapter in the other.
    "experts": LoraConfig(
        r=4, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    ),
    "gpt2": LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True),
    "EVA": LoraConfig(**LORA, init_lora_weights="eva", eva_config=EvaConfig()),
}
RUN = {"num_iterations": 1, "learning_rate": 2e-2, "disable_dropout": True, "lora": False}
SAVED = {"save_strategy": "steps", "save_steps": 2}
PROMPT = torch.tensor([[70, 84, 90, 101, 33]])


@pytest.fixture
def model_of(tiny_model, tmp_path):
    def find(name):
        if name not in ("gpt2", "experts"):
            return tiny_model
        size = AutoModelForCausalLM.from_pretrained(tiny_model).config.vocab_size
        if name == "experts":
            build("qwen3_moe", vocab_size=size, head_dim=8, **MOE).save_pretrained(tmp_path / "experts")
            return str(tmp_path / "experts")
        config = GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=256, vocab_size=size, initializer_range=0.3)
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
        return str(tmp_path / "gpt2")

    return find


def trained_of(trainer):
    named = trainer.model.named_parameters()
    return {name: param.detach().clone() for name, param in named if param.requires_grad or ".ref." in name}


@torch.no_grad()
def outputs(model):
    return model(TOKENS).logits


def far(one, other):
    """The largest difference of two tensors, or of two mappings of tensors; key biases change nothing."""
    if isinstance(one, torch.Tensor):
        return (one - other).abs().max().item()
    return max(far(one[name], other[name]) for name in one if not name.endswith("k_proj.bias"))


def drawn_and_scored(trainer):
    """Log-probabilities of a sample, as `generate` drew it and as the loss scores it."""
    torch.manual_seed(0)
    returned = {"output_logits": True, "return_dict_in_generate": True}
    drawn = trainer.model.generate(input_ids=PROMPT, max_new_tokens=6, do_sample=True, top_k=0, **returned)
    completion = drawn.sequences[:, PROMPT.shape[1] :, None]
    logps = torch.stack(drawn.logits, dim=1).log_softmax(-1).gather(-1, completion)[..., 0]
    mask = torch.ones_like(drawn.sequences)
    return logps, trainer._trl_score(trainer.model, drawn.sequences, mask, completion.shape[1])[0]


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "LoRA", "DoRA", "rsLoRA", "beside", "tied", "experts"))
def test_a_lora_is_one_model_in_all_that_is_done_with_it(run, resume, model_of, name):
    path = model_of(name)
    keys = {**RUN, "beta": 0.1, "ref_reset_every": 2, "model": path, "trainer_kwargs": {"peft_config": EXAMPLES[name]}}
    whole = run(**keys, **SAVED)
    end = outputs(whole.model)

    assert far(*drawn_and_scored(whole)) < 2e-5
    at_step = [row["kl_ref"] for row in read_rows(whole)]
    assert at_step[0] == at_step[2] == 0.0  # the reference is the policy
    assert min(at_step[1], at_step[3]) > 1e-5

    resumed = resume(whole, 2, **keys)
    assert far(trained_of(whole), trained_of(resumed)) == 0.0

    whole.save_model()
    assert far(outputs(load_adapter(path, whole.args.output_dir)), end) < 1e-6

    packed = run(**keys, reuse_old_logps=True, pack_groups="auto")
    assert far(trained_of(whole), trained_of(packed)) < 1e-3


@pytest.mark.parametrize("name", EXAMPLES)
def test_compact_samples_are_those_of_generate(make_trainer, model_of, name):
    keys = {"model": model_of(name), "trainer_kwargs": {"peft_config": EXAMPLES[name]}}
    trainer = make_trainer(**RUN, **keys, compact_generation="on", generation_kwargs={"top_k": 1})
    with torch.no_grad():
        for param in trained_of(trainer).values():
            param.add_(0.1)
    expected = trainer.model.generate(input_ids=PROMPT, max_new_tokens=6, do_sample=False)[0, PROMPT.shape[1] :]
    assert trainer.generate_tokens(PROMPT.tolist(), 6) == [expected.tolist()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_reference_scores_as_under_pefts_own_switch(model_of, name):
    """Beside LoRA there is an adapter with a module that the policy and its reference do not have."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_of(name)), EXAMPLES[name]).eval()
    adapters = ["ref", None]
    frozen_adapter(model, "ref")
    if name == "LoRA":
        model.add_adapter("other", LoraConfig(**LORA, modules_to_save=["norm"]))
    with torch.no_grad():
        for adapter, size in (("default", 0.1), ("ref", 0.05)):
            for param_name, param in model.named_parameters():
                if f".{adapter}" in param_name and param.is_floating_point():
                    param.add_(size)
    policy = outputs(model)
    trained = [param.requires_grad for param in model.parameters()]
    found = {}
    for adapter in adapters:
        with AdapterReference(model, adapter).active(model):
            found[adapter] = outputs(model)
        assert torch.equal(outputs(model), policy)
    assert [param.requires_grad for param in model.parameters()] == trained
    for adapter, output in found.items():
        with use_adapter(model, adapter):
            assert torch.equal(output, outputs(model))
        assert far(output, policy) > 1e-4


VIRTUAL = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
# What TRL trains, and no reference or copy of ours is made of.
OTHERS = {
    "IA3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoKr": LoKrConfig(r=4, alpha=4, **TARGETS),
    "OFT": OFTConfig(oft_block_size=4, **TARGETS),
    "VeRA": VeraConfig(r=16, **SAME_SIZE),
    "HRA": HRAConfig(**TARGETS),
    "prompt tuning": PromptTuningConfig(**VIRTUAL),
    "PiSSA": LoraConfig(**LORA, init_lora_weights="pissa"),
    "KaSA": LoraConfig(**LORA, kasa_config=KasaConfig()),
    "biases": LoraConfig(**LORA, bias="lora_only"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_adapter_is_trained_as_by_trl_with_our_keys_off(run, largest_difference, name):
    keys = {"lora": False, "trainer_kwargs": {"peft_config": OTHERS[name]}, "learning_rate": 2e-2, "max_steps": 2}
    assert largest_difference(run(**keys), run(GRPOTrainer, **keys)) == 0.0


MOVES = {"beta": 0.1, "ref_reset_every": 2}


@pytest.mark.parametrize("keys", [MOVES, {"beta_base": 0.1}, {"elastic_reset_every": 2}], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_another_adapter_is_refused_beside_a_reference_that_moves_or_a_copy(make_trainer, name, keys):
    with pytest.raises(ValueError, match="adapter") as caught:
        make_trainer(lora=False, trainer_kwargs={"peft_config": OTHERS[name]}, **keys)
    assert "\n" not in str(caught.value)


def test_another_adapter_of_a_wrapped_model_is_refused_too(make_trainer, tiny_model):
    wrapped = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), OTHERS["IA3"])
    with pytest.raises(ValueError, match="peft_type=IA3"):
        make_trainer(model=wrapped, lora=False, beta_base=0.1)


def test_an_adapter_by_another_name_is_trained_as_by_trl_with_our_keys_off(run, largest_difference, tiny_model):
    def named():
        torch.manual_seed(5)
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        return get_peft_model(base, LoraConfig(**LORA), adapter_name="mine")

    keys = {"lora": False, "learning_rate": 2e-2, "max_steps": 2}
    assert largest_difference(run(model=named(), **keys), run(GRPOTrainer, model=named(), **keys)) == 0.0
