"""A GGUF file as a base: the weights that were written into it come out, and what cannot be a base is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trl_prorl import embedded_model
from trl_prorl.embedded import gguf_base
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.files import file_sha256
from trl_prorl.hub.card import model_card
from trl_prorl.train import find_model


CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"
TOKENS = [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "Ġa", "bc", "<|endoftext|>", "<|im_end|>"]
PADDING = TOKENS.index("<|endoftext|>")
END = TOKENS.index("<|im_end|>")
NORMAL_TOKEN = 1
CONTROL_TOKEN = 3

# Tensors of a layer, in llama.cpp's names and in transformers'.
LAYER_TENSORS = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


@pytest.fixture(scope="module")
def original():
    """A Qwen2 of two layers whose widths are multiples of 32, the block of Q8_0."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(param)
    return model


def write_gguf(file: Path, model, quantised: bool = False, architecture="qwen2", fields=(), change=None) -> Path:
    """Write a model, with further `fields` (which replace its own), after `change` of its tensors."""
    config = model.config
    known = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": 10000.0,
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
    }
    if architecture == "llama":
        known["rope.dimension_count"] = config.head_dim
    writer = GGUFWriter(file, architecture)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for name, value in (known | dict(fields)).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}.get(type(value))
        if add is not None:
            add(f"{architecture}.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([NORMAL_TOKEN] * (len(TOKENS) - 2) + [CONTROL_TOKEN] * 2)
    writer.add_token_merges(["Ġ a", "b c"])
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PADDING)
    writer.add_bos_token_id(PADDING)
    writer.add_chat_template(CHAT_TEMPLATE)
    weights = model.state_dict()
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    names["output.weight"] = "lm_head.weight"
    for layer in range(config.num_hidden_layers):
        for theirs, ours in LAYER_TENSORS.items():
            names[f"blk.{layer}.{theirs}"] = f"model.layers.{layer}.{ours}"
    tensors = {theirs: weights[ours].numpy() for theirs, ours in names.items() if ours in weights}
    if change is not None:
        change(tensors)
    for theirs, values in tensors.items():
        if quantised and values.ndim == 2:
            blocks = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(theirs, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(theirs, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "home" / "trl_prorl" / "gguf"
    monkeypatch.setattr(gguf_base, "CACHE", folder)
    return folder


@pytest.fixture
def file(tmp_path, original):
    return write_gguf(tmp_path / "tiny.gguf", original)


def test_a_run_and_its_card_are_named_by_the_file(cache, file, run):
    trainer = run(model=str(file), trainer_kwargs={"processing_class": None}, max_steps=1)
    assert trainer.processing_class.chat_template == CHAT_TEMPLATE
    base = json.loads(Path(trainer.run_dir, "env.json").read_text())["base_model"]
    assert (base["name"], base["sha256"]) == (str(file), file_sha256(file))
    assert f'embedded_model("{file}")' in model_card(trainer.run_dir, adapter=True).text


@pytest.mark.parametrize("quantised", [False, True])
def test_the_weights_are_those_of_the_file_rounded_to_bf16(cache, tmp_path, original, quantised):
    folder = embedded_model(str(write_gguf(tmp_path / "tiny.gguf", original, quantised=quantised)))
    assert Path(folder).parent == cache
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert type(model) is Qwen2ForCausalLM
    assert not hasattr(model.config, "quantization_config")
    expected = Qwen2ForCausalLM(original.config)
    expected.load_state_dict(original.state_dict())
    with torch.no_grad():
        for param in expected.parameters():
            if quantised and param.dim() == 2:  # as the reader's own package makes them
                blocks = quantize(param.detach().numpy(), GGMLQuantizationType.Q8_0)
                param.copy_(torch.from_numpy(dequantize(blocks, GGMLQuantizationType.Q8_0)))
            param.copy_(param.bfloat16())
    found = model.state_dict()
    assert found.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(found[name], value.bfloat16()), name
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(model.float()(tokens).logits, expected(tokens).logits)


def test_the_tokenizer_comes_along_and_a_padding_token_ends_a_text_too(cache, file):
    folder = find_model(str(file))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "a b"}], tokenize=False)
    assert chat == "a b<|im_end|>"
    generation = json.loads(Path(folder, "generation_config.json").read_text())
    assert generation["eos_token_id"] == [END, PADDING]


def test_it_is_converted_once_and_again_when_the_file_changes(cache, file, original, monkeypatch):
    first = find_model(str(file))
    with monkeypatch.context() as patched:
        patched.setattr(gguf_base, "convert", lambda *args: pytest.fail("converted twice"))
        assert find_model(str(file)) == first
    assert find_model(str(write_gguf(file, Qwen2ForCausalLM(original.config)))) != first


def test_an_evaluation_finds_the_file_above_the_run_and_refuses_another(cache, file, tmp_path, original):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    config = {"model_name_or_path": "tiny.gguf"}
    noted = {"base_model": {"name": "tiny.gguf", "sha256": file_sha256(file)}}
    (run / "env.json").write_text(json.dumps(noted))
    assert with_local_paths(run, config)["model_name_or_path"] == find_model(str(file))
    write_gguf(file, Qwen2ForCausalLM(original.config))
    with pytest.raises(InputError, match="no such file with SHA-256"):
        with_local_paths(run, config)


@pytest.mark.parametrize("keep", [None, 0, 3, 40, 2000, 60_000])
def test_a_missing_or_damaged_file_is_one_line(cache, file, keep):
    content = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(content[:keep])
    with pytest.raises(InputError, match="tiny.gguf") as refused:
        find_model(str(file))
    assert "\n" not in str(refused.value)
    assert list(cache.glob("tiny-*[!k]")) == []


def test_without_its_reader_one_line_says_how(cache, file, monkeypatch):
    monkeypatch.setattr(gguf_base.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install 'gguf"):
        find_model(str(file))


def with_another_shape(tensors):
    tensors["blk.1.attn_q.weight"] = tensors["blk.1.attn_k.weight"]


def with_nan(tensors):
    tensors["blk.1.ffn_up.weight"] = tensors["blk.1.ffn_up.weight"].copy()
    tensors["blk.1.ffn_up.weight"][3, 4] = float("nan")


def with_one_more(tensors):
    tensors["blk.1.attn_q_norm.weight"] = tensors["blk.1.attn_norm.weight"]


def with_other_frequencies(tensors):
    tensors["rope_freqs.weight"] = np.linspace(1.0, 8.0, 8, dtype=np.float32)


@pytest.mark.parametrize(
    "keys, named",
    [
        ({"change": lambda tensors: tensors.pop("blk.1.ffn_up.weight")}, "up_proj"),
        ({"change": with_another_shape}, "of another shape"),
        ({"architecture": "gemma3"}, "gemma3"),
        ({"change": with_one_more}, "attn_q_norm"),
        ({"change": with_nan}, "NaN"),
        ({"fields": {"block_count": 3}}, "missing: .*layers.2"),
        ({"fields": {"expert_count": 4}}, "expert_count"),
        ({"fields": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}}, "rope.scaling.type='linear'"),
        ({"fields": {"attention.sliding_window": 16}}, "sliding_window"),
        ({"fields": {"rope.dimension_count": 8}}, "dimension_count"),
        ({"change": with_other_frequencies}, "rope_freqs"),
    ],
)
def test_what_would_not_be_the_files_model_is_one_line_and_leaves_nothing(keys, named, cache, tmp_path, original):
    with pytest.raises(InputError, match=named) as refused:
        find_model(str(write_gguf(tmp_path / "odd.gguf", original, **keys)))
    assert "odd.gguf" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not [path for path in cache.glob("*") if path.is_dir()]


LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192


def test_the_rope_scaling_of_llama_3_is_carried_over(cache, tmp_path):
    """The control is a Llama with the equivalent configuration of transformers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        rope_parameters={"rope_theta": 10000.0, **LLAMA3},
    )
    model = LlamaForCausalLM(config).eval()
    for param in model.parameters():
        param.data = param.data.bfloat16().float()
    scaled = model.model.rotary_emb.inv_freq.numpy()

    def as_llama_cpp(tensors):
        for name, values in tensors.items():
            if "attn_q." in name or "attn_k." in name:  # whose rotary pairs are neighbours there
                halves = values.reshape(2, 2, values.shape[0] // 4, -1)
                tensors[name] = halves.swapaxes(1, 2).reshape(values.shape)
        plain = 1.0 / 10000.0 ** (np.arange(0, 32, 2) / 32)
        tensors["rope_freqs.weight"] = (plain / scaled).astype(np.float32)

    file = write_gguf(tmp_path / "llama.gguf", model, architecture="llama", change=as_llama_cpp)
    found = AutoModelForCausalLM.from_pretrained(find_model(str(file)), dtype="float32").eval()
    np.testing.assert_allclose(found.model.rotary_emb.inv_freq.numpy(), scaled, rtol=1e-6)
    tokens = torch.arange(90)[None]
    with torch.no_grad():
        torch.testing.assert_close(found(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
