"""Sizes of models with random weights, Qwen2.5's among them, and how one is made without the Hub."""

import argparse

from trl_prorl.embedded.shipped import embedded_model


SHAPES = {  # hidden, layers, attention heads, key-value heads, intermediate, vocabulary
    "tiny": (32, 2, 2, 1, 64, 300),
    "small": (256, 4, 4, 4, 768, 8192),
    "smollm2": (576, 30, 9, 3, 1536, 49152),  # the pretrained one
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936),
}


def new_model(args: argparse.Namespace, tokenizer, dtype=None):
    """A model of `args.shape` in `dtype`, by default `args.dtype`; the same weights whenever it is made."""
    import torch  # not for the names above
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    dtype = dtype or args.dtype
    if args.shape == "smollm2":
        model = AutoModelForCausalLM.from_pretrained(embedded_model("smollm2"), dtype=dtype)
        tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        model.config.update(tokens)
        model.generation_config = GenerationConfig(**tokens)
        return model.to(args.device)

    hidden, layers, heads, key_values, intermediate, vocabulary = SHAPES[args.shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        intermediate_size=intermediate,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.device(args.device):  # a CPU takes minutes to draw a billion random numbers
        return Qwen2ForCausalLM(config).to(dtype)
