"""docs/from-sft.md: what its script merges is the policy of the adapter."""

import sys

import pytest
import torch
from doc_pages import ROOT, named_file
from tiny_run import load_adapter, logits, new_trained_adapter
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.parametrize("layers", [["q_proj"], ["q_proj", "embed_tokens"]])
def test_the_merged_folder_is_the_policy_of_the_adapter(tiny_model, tmp_path, monkeypatch, layers):
    """The tiny model's embeddings are tied; an adapter changes those of the input alone."""
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    policy = new_trained_adapter(tiny_model, r=4, target_modules=layers)
    with torch.no_grad():
        for name, param in policy.named_parameters():
            if "lora_embedding" in name:
                param.normal_(std=0.5)
    policy.save_pretrained(adapter, save_embedding_layers=False)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(adapter)
    monkeypatch.setattr(sys, "argv", ["merge.py", tiny_model, str(adapter), str(merged)])
    exec(named_file((ROOT / "docs" / "from-sft.md").read_text(), "merge.py"), {})
    expected = logits(load_adapter(tiny_model, adapter))
    found = logits(AutoModelForCausalLM.from_pretrained(merged, dtype="float32"))
    base = logits(AutoModelForCausalLM.from_pretrained(tiny_model))
    assert (expected - base).abs().max() > 0.1
    assert torch.allclose(found, expected, atol=1e-4)
    assert AutoTokenizer.from_pretrained(merged)("a").input_ids
