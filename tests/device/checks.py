"""
What must hold on the pretended device, each a function; `python checks.py FILE` writes what each of them raised.
"""

import argparse
import json
import os
import tempfile
import traceback
from pathlib import Path
from unittest import mock

import pretend
import torch
import trainings
from datasets import Dataset
from packed_models import build
from peft import LoraConfig, get_peft_model
from pretend import DEVICE, NAME, copies, generator
from torch import nn
from trainings import FAST, RESETS, make_trainer, save_model
from transformers import GenerationConfig
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.cli.prompts import pad_left
from trl_prorl.fast import recording
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.lean_lora import LeanLinear, restore_layers, use_lean_layers
from trl_prorl.fast.prefix import layout, prefix_attention
from trl_prorl.fast.recording import Recordings


CHECKS = {}


def registered(check):
    CHECKS[check.__name__] = check
    return check


def raised(call) -> str:
    """Return the message with which a call fails; nothing if it does not."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


# --------------------------------------------------------------------------------------------- single operators


@registered
def devices_do_not_mix():
    here = torch.ones(3, device=DEVICE)
    there = torch.ones(3)
    assert "at least two devices, pretend:0 and cpu" in raised(lambda: here + there)
    assert "at least two devices, pretend:0 and cpu" in raised(lambda: torch.cat([there, here]))
    assert "at least two devices, pretend:0 and cpu" in raised(lambda: here.gather(0, torch.tensor([0])))
    place = torch.zeros(1, dtype=torch.long, device=DEVICE)
    assert "at least two devices, pretend:0 and cpu" in raised(lambda: there.index_put_((place,), here[:1]))
    assert (here + torch.tensor(2.0)).tolist() == [3.0] * 3  # a number of the host is an argument of the kernel


@registered
def generators_do_not_mix():
    states = [torch.get_rng_state(), generator.get_state()]
    torch.rand(2, device=DEVICE)
    assert torch.equal(states[0], torch.get_rng_state())
    assert not torch.equal(states[1], generator.get_state())
    here = torch.zeros(2, device=DEVICE)
    assert "device type for generator" in raised(lambda: here.normal_(generator=torch.Generator()))
    torch.manual_seed(5)
    seeded = torch.rand(2, device=DEVICE).cpu()
    torch.manual_seed(5)
    assert torch.equal(seeded, torch.rand(2))


@registered
def autocast_follows_cuda_s_lists():
    layer = nn.Linear(4, 4).to(DEVICE)
    states = torch.ones(2, 4, device=DEVICE)
    with torch.autocast(NAME, dtype=torch.bfloat16):
        assert layer(states).dtype == torch.bfloat16
        assert layer(states).softmax(-1).dtype == torch.float32
        assert (layer(states).exp()).dtype == torch.float32
        assert torch.addcmul(layer(states), states, states).dtype == torch.float32
    assert layer(states).dtype == torch.float32


@registered
def packed_attention_narrows_before_its_blocks():
    """Under autocast with fp32 weights: rotated queries and keys are fp32, values are bf16."""
    sequences = [(0, 0, 0, 5), (0, 5, 5, 300), (0, 5, 305, 290)]
    torch.manual_seed(0)
    query = torch.randn(1, 4, 595, 8, device=DEVICE, requires_grad=True)
    key = torch.randn(1, 2, 595, 8, device=DEVICE, requires_grad=True)
    value = torch.randn(1, 2, 595, 8, device=DEVICE).bfloat16()
    narrow = prefix_attention(query.bfloat16(), key.bfloat16(), value, layout(sequences, DEVICE))
    copies.clear()
    with torch.autocast(NAME, dtype=torch.bfloat16):
        result = prefix_attention(query, key, value, layout(sequences, DEVICE))
        inside = len(copies)
        copies.clear()
        prefix_attention(query.bfloat16(), key.bfloat16(), value, layout(sequences, DEVICE))
    assert torch.equal(result, narrow)
    assert inside == len(copies)  # with the two that narrow outside
    gradients = torch.autograd.grad(result.float().square().sum(), [query, key])
    assert [one.dtype for one in gradients] == [torch.float32] * 2


class Repeated:
    """In place of a CUDA graph: computes again."""

    def __init__(self, compute, undo, device, pool):
        compute()
        undo()
        self.pool = pool
        self.replay = compute


@registered
def tokens_with_windows_and_states_are_those_of_a_cpu():
    """Greedy, computed and recorded: every tensor of a mask, of a ring and of a state is on the device."""
    families = {
        "gemma3_text": {"num_hidden_layers": 7, "sliding_window": 8},
        "qwen3_5_text": {"num_hidden_layers": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    }
    ids, mask = pad_left([[5, 6, 7], [9, 8, 7] * 5, [11] * 9], 0)
    ends = list(range(0, 48, 5))
    settings = GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=ends)

    def sample(model, recordings=None):
        device = model.device
        given = {"copies": torch.tensor([0, 0, 1, 1, 2], device=device), "custom_generate": compact_sample}
        given |= {"generation_config": settings, "recordings": recordings}
        sampled = model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), **given)
        assert sampled.recorded == (recordings is not None)
        return sampled.ids.cpu()

    for kind, sizes in families.items():
        model = build(kind, head_dim=8, **sizes).eval()
        expected = sample(model)
        model.to(DEVICE)
        assert torch.equal(sample(model), expected)
        with mock.patch.object(recording, "Recording", Repeated):
            assert torch.equal(sample(model, Recordings()), expected)


@registered
def lean_layers_are_peft_s():
    """In values and gradients; under autocast PEFT widens what each layer is given, and they do not."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["0"], init_lora_weights=False)
    model = get_peft_model(nn.Sequential(nn.Linear(24, 40)), config).to(DEVICE)
    states = torch.randn(6, 24, device=DEVICE, requires_grad=True)
    trained = [param for param in model.parameters() if param.requires_grad]

    def results(mixed: bool) -> list[torch.Tensor]:
        copies.clear()
        with torch.autocast(NAME, dtype=torch.bfloat16, enabled=mixed):
            output = model(states.bfloat16() if mixed else states)
        found = [output, *torch.autograd.grad(output.float().square().sum(), [states, *trained])]
        return [one.detach().float().cpu() for one in found]

    for mixed, bounds in ((False, {"atol": 1e-4, "rtol": 1e-5}), (True, {"atol": 0.2, "rtol": 0.05})):
        theirs = results(mixed)
        theirs_copied = len(copies)
        layers = use_lean_layers(model)
        assert any(isinstance(layer, LeanLinear) for layer in model.modules())
        mine = results(mixed)
        restore_layers(layers)
        torch.testing.assert_close(mine, theirs, **bounds)
        assert len(copies) < theirs_copied or not mixed


# --------------------------------------------------------------------------------------------------- trainings


def trained_weights(trainer) -> dict[str, torch.Tensor]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: param.detach().cpu() for name, param in model.named_parameters() if param.requires_grad}


def largest_difference(first, second) -> float:
    a = trained_weights(first)
    b = trained_weights(second)
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def train(cls, folder, name, checkpoint=None, **keys):
    trainer = make_trainer(cls, str(folder / "model"), folder / name, **keys)
    trainer.train(resume_from_checkpoint=checkpoint)
    for param in trainer.accelerator.unwrap_model(trainer.model).parameters():
        assert param.device == trainer.accelerator.device
    return trainer


@registered
def trains_as_on_a_cpu():
    """
    One random state for both, since what a step draws with the host and on the device comes from one on a CPU. By SGD,
    because Adam blows up the rounding of a gradient that is almost 0.
    """
    own = pretend.generator
    pretend.generator = torch.default_generator
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_model(folder / "model", 1.0)
            for cls, keys in ((GRPOTrainer, {"beta": 0.1}), (ProRLTrainer, RESETS)):
                keys = {"optim": "sgd", **keys}
                here = train(cls, folder, "here", **keys)
                assert here.accelerator.device == DEVICE  # all accelerators of a process share their device
                os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
                there = train(cls, folder, "there", use_cpu=True, **keys)
                os.environ["ACCELERATE_TORCH_DEVICE"] = str(DEVICE)
                assert there.accelerator.device.type == "cpu"
                assert largest_difference(here, there) < 1e-6
    finally:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(DEVICE)
        pretend.generator = own


@registered
def a_run_with_everything_on_resumes_exactly():
    """A run that saves and evaluates at every step is the one that does not, and goes on from step 1 as it went."""
    keys = RESETS | FAST | {"bf16": True, "max_steps": 3}
    question = [{"role": "user", "content": "say 5"}]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model", 2.0)
        plain = train(ProRLTrainer, folder, "plain", **keys)
        keys |= {
            "save_strategy": "steps",
            "save_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "per_device_eval_batch_size": 4,
            "questions": Dataset.from_dict({"prompt": [question] * 2}),
        }
        whole = train(ProRLTrainer, folder, "whole", **keys)
        assert largest_difference(plain, whole) == 0.0
        checkpoint = folder / "whole" / "checkpoint-1"  # in the middle of a batch, before the next is sampled
        (folder / "resumed").mkdir()
        moved = checkpoint.rename(folder / "resumed" / "checkpoint-1")
        resumed = train(ProRLTrainer, folder, "resumed", str(moved), **keys)
        assert resumed.state.global_step == 3
        assert largest_difference(whole, resumed) == 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    trainings.stand_in_for_gpu()
    found = {}
    for name, check in CHECKS.items():
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
