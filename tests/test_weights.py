"""No missing weight stays random, and no adapter is loaded in part: one line names the file and the keys."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, PromptTuningConfig, VBLoRAConfig, VeraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_run import load_with_new_adapter, logits, sharpen
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trl_prorl import load_model
from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.models import identity, load_base_model, load_point, trained_point
from trl_prorl.eval.samples.trainer_held_out import TrainerHeldOut
from trl_prorl.upstream.vocabulary import load_tokenizer
from trl_prorl.upstream.weights import copy_tensors, load_checkpoint


TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EYES = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4}


def qwen2(tied, **text):
    return Qwen2ForCausalLM(Qwen2Config(**text, tie_word_embeddings=tied))


def experts(tied, **text):
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**text, **sizes, tie_word_embeddings=tied))


def qwen3_5(tied, **text):
    eyes = {**EYES, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16}
    text = {**text, **LINEAR, "tie_word_embeddings": tied}
    config = Qwen3_5Config(text_config=text, vision_config=eyes, tie_word_embeddings=tied)
    return Qwen3_5ForConditionalGeneration(config)


@pytest.fixture(scope="module")
def save_model(tmp_path_factory):
    """Return a function that saves a tiny model of a kind, whose distribution is not flat, and returns its folder."""
    tokenizer = byte_tokenizer()
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}

    def save(make, tied=False):
        torch.manual_seed(3)
        model = sharpen(make(tied, vocab_size=len(tokenizer), **ends, **TEXT))
        folder = tmp_path_factory.mktemp(make.__name__)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


def adapter_of(**keys):
    return {"peft_config": LoraConfig(r=4, lora_alpha=8, target_modules=".*(q|v|down)_proj", **keys)}


def loaded(trainer, model):
    """The trained model of a run, from its files."""
    config = {"model_name_or_path": model}
    return load_point(trained_point(Path(trainer.args.output_dir)), config).eval()


def in_memory(trainer):
    return trainer.accelerator.unwrap_model(trainer.model).eval()


@pytest.mark.parametrize(
    "make, tied, lora",
    [
        (qwen2, True, True),
        (qwen2, True, False),
        (qwen3_5, True, True),
        (experts, False, False),
        *(
            pytest.param(make, tied, lora, marks=pytest.mark.slow)
            for make, tied, lora in (
                (qwen2, False, True),
                (qwen2, False, False),
                (qwen3_5, True, False),
                (experts, False, True),
            )
        ),
    ],
)
def test_a_trained_model_is_the_same_from_its_files_and_after_a_resume(make, tied, lora, save_model, run, resume):
    model = save_model(make, tied)
    keys = {"model": model, "lora": False, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    keys |= {"learning_rate": 5e-2, "trainer_kwargs": adapter_of() if lora else {}}
    first = run(**keys)
    first.save_model()
    trained = logits(in_memory(first))
    assert (logits(load_base_model({"model_name_or_path": model}).eval()) - trained).abs().max() > 0.1
    assert torch.equal(logits(loaded(first, model)), trained)
    assert torch.equal(logits(in_memory(resume(first, 1, **keys))), trained)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_a_model_that_is_trained_with_other_settings_is_evaluated_with_them(lora, save_model, run):
    model = save_model(qwen2, True)
    rope = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
    trainer = run(
        model=model, lora=False, max_steps=2, model_init_kwargs=rope, trainer_kwargs=adapter_of() if lora else {}
    )
    trainer.save_model()
    folder = Path(trainer.args.output_dir)
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"model_name_or_path": model}
    began, plain = (logits(AutoModelForCausalLM.from_pretrained(model, **keys).eval()) for keys in (rope, {}))
    assert (began - plain).abs().max() > 1e-2
    assert torch.equal(logits(load_base_model(config).eval()), began)
    assert torch.equal(logits(load_point(trained_point(folder), config).eval()), logits(in_memory(trainer)))
    assert identity(None, config) != identity(None, {"model_name_or_path": model})
    held_out = TrainerHeldOut(trainer, trainer.train_dataset, None, "own")
    with held_out.scored(held_out.base) as base:
        assert lora or torch.equal(logits(base), began)


def test_an_adapter_of_the_text_model_of_one_that_sees_is_loaded_on_that_class(save_model, run):
    """As a script makes it that loads its model by AutoModelForCausalLM; its reference is of that class, too."""
    model = save_model(qwen3_5)
    policy = AutoModelForCausalLM.from_pretrained(model)
    trainer = run(model=policy, lora=False, max_steps=2, learning_rate=5e-2, trainer_kwargs=adapter_of())
    trainer.save_model()
    assert torch.equal(logits(loaded(trainer, model)), logits(in_memory(trainer)))


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}])
def test_the_frozen_models_are_of_the_policys_own_class(keys, save_model, run):
    model = save_model(qwen3_5)
    for policy in (model, AutoModelForCausalLM.from_pretrained(model)):
        trainer = run(model=policy, lora=False, max_steps=2, **keys)
        frozen = (trainer.reference or trainer.base).ref_model
        assert type(frozen) is type(in_memory(trainer))


def rename(file, part, other=None):
    """Rename the tensors of a file whose name has a part; `None` drops them."""
    tensors = load_file(file)
    for name in [name for name in tensors if part in name]:
        tensor = tensors.pop(name)
        if other is not None:
            tensors[name.replace(part, other)] = tensor
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("keys", "change", "named"),
    [
        ({}, ["layers.1.mlp.down_proj"], "down_proj"),
        ({}, [""], "missing"),
        ({}, ["layers.1", "layers.7"], r"layers\.7"),
        ({"use_dora": True}, ["magnitude"], "missing"),
        ({"modules_to_save": ["lm_head"]}, ["lm_head"], "missing"),
    ],
)
def test_an_adapter_that_would_be_loaded_in_part_is_one_line(keys, change, named, tiny_model, tmp_path):
    load_with_new_adapter(tiny_model, **keys).save_pretrained(tmp_path)
    assert load_model(tiny_model, tmp_path).active_adapters == ["default"]
    rename(tmp_path / "adapter_model.safetensors", *change)
    with pytest.raises(InputError, match=named) as refused:
        load_model(tiny_model, tmp_path)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_model_with_a_random_weight_is_one_line(tiny_model, tmp_path, run):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    rename(folder / "model.safetensors", "layers.1.mlp.down_proj")
    for load in (load_model, lambda name: run(model=str(name))):
        with pytest.raises(InputError, match="down_proj") as refused:
            load(folder)
        assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        VeraConfig(r=4, target_modules=["q_proj", "o_proj"], save_projection=False),
        VBLoRAConfig(r=4, num_vectors=8, vector_length=8, target_modules=["q_proj", "o_proj"]),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    ],
    ids=["VeRA", "VB-LoRA", "prompt tuning"],
)
def test_weights_that_an_adapter_shares_or_does_not_save_are_not_missed(config, tiny_model, tmp_path):
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).save_pretrained(tmp_path)
    assert load_model(tiny_model, tmp_path).active_adapters == ["default"]


def test_tensors_are_copied_all_or_none(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.ones(1)}, tmp_path / "x.safetensors")
    tensors = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(InputError, match="x.safetensors"):
        copy_tensors(tmp_path / "x.safetensors", tensors)
    assert not any(tensor.any() for tensor in tensors.values())


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "LlamaTokenizer"])
def test_a_tokenizer_without_its_vocabulary_is_refused(kind, tmp_path):
    """transformers makes one of special tokens in its place, by which a prompt has no text."""
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"tokenizer_class": kind}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert AutoTokenizer.from_pretrained(tmp_path)("hello").input_ids == []
    with pytest.raises(InputError, match="tokenizer.json"):
        load_tokenizer(tmp_path)


def test_a_reward_model_without_its_head_is_refused(tiny_model, make_trainer):
    """A language model has no score, and transformers would begin one at random."""
    with pytest.raises(InputError, match=r"score\.weight"):
        make_trainer(reward=tiny_model)


OF_EMBEDDINGS = {
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "their parameter": {"target_modules": ["q_proj"], "target_parameters": ["embed_tokens.weight"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "both, tied": {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
    "rows of the head": {"trainable_token_indices": {"lm_head": [90, 101]}},
    "other rows of the head": {"trainable_token_indices": {"embed_tokens": [70, 84], "lm_head": [90, 101]}},
    "overlapping rows": {"trainable_token_indices": {"embed_tokens": [70, 84, 90], "lm_head": [90, 101]}},
    "embeddings and rows of the head": {
        "target_modules": ["q_proj", "embed_tokens"],
        "trainable_token_indices": {"lm_head": [70, 90]},
    },
}
OTHERS = {
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "saved, tied": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [70, 84]},
    "rows of the embeddings": {"trainable_token_indices": {"embed_tokens": [70, 84]}},
    "the same rows": {"trainable_token_indices": {"embed_tokens": [70, 84], "lm_head": [70, 84]}},
    "linear": {"target_modules": "all-linear"},
}


@pytest.mark.parametrize("keys", [*OF_EMBEDDINGS.values(), *OTHERS.values()], ids=[*OF_EMBEDDINGS, *OTHERS])
def test_an_adapter_of_tied_embeddings_is_merged_as_it_was_trained(keys, save_model, tmp_path):
    model = save_model(qwen2, tied=True)
    torch.manual_seed(0)
    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=4, **keys)).eval()
    with torch.no_grad():
        for param in trained.parameters():
            if param.requires_grad:
                param.add_(0.1 * torch.randn_like(param))
    trained.save_pretrained(tmp_path / "adapter")
    expected = logits(trained)
    loaded = load_model(model, tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded), expected)
    merged = loaded.merge_and_unload()
    assert (logits(merged) - expected).abs().max() < 1e-4
    merged.save_pretrained(tmp_path / "merged")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert (logits(saved) - expected).abs().max() < 1e-4


KERNELS = [
    {"_attn_implementation": "paged|a-stranger/kernel"},
    {"text_config": {"attn_implementation": {"": "sdpa", "text_config": "a-stranger/kernel@main"}}},
]


@pytest.mark.parametrize("keys", KERNELS)
def test_a_kernel_that_a_configuration_names_is_refused(keys, tiny_model, tmp_path, make_trainer):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    loads = (
        lambda: load_model(folder),
        lambda: make_trainer(model=str(folder)),
        lambda: make_trainer(reward=str(folder)),
        lambda: load_checkpoint(AutoModelForCausalLM.from_pretrained(tiny_model), folder),
    )
    for load in loads:
        with pytest.raises(InputError, match="attn_implementation.*a-stranger/kernel") as refused:
            load()
        assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
