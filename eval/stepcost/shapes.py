"""Sizes of models with random weights, Qwen2.5's among them, and how one is made without the Hub."""

import argparse


SHAPES = {  # hidden, layers, attention heads, key-value heads, intermediate, vocabulary
    "tiny": (32, 2, 2, 1, 64, 300),
    "small": (256, 4, 4, 4, 768, 8192),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936),
}


def new_model(args: argparse.Namespace, tokenizer):
    """A model of `args.shape` in `args.dtype`; the same weights whenever it is made."""
    import torch  # not for the names above
    from transformers import Qwen2Config, Qwen2ForCausalLM

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
        return Qwen2ForCausalLM(config).to(args.dtype)
