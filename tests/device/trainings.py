"""Trainings on the pretended device: a tiny model, its trainers, and what stands in for a GPU."""

import functools
import os
import sys
import warnings
from pathlib import Path


HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "scripts")]
os.environ["ACCELERATE_TORCH_DEVICE"] = "pretend:0"  # read by accelerate

import torch  # noqa: E402
import transformers.training_args  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from pretend import NAME, generator  # noqa: E402
from tiny_run import LORA, SETTINGS, vowels  # noqa: E402
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Trainer, set_seed  # noqa: E402
from trl import GRPOConfig  # noqa: E402

import trl_prorl.refusals  # noqa: E402
from trl_prorl import ProRLConfig, ProRLTrainer  # noqa: E402
from trl_prorl.embedded.shipped import byte_tokenizer  # noqa: E402


RESETS = {"beta": 0.1, "ref_reset_every": 2}
FAST = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}


def stand_in_for_gpu() -> None:
    """Let what asks for CUDA by name find the pretended device."""
    torch.random.fork_rng = functools.partial(torch.random.fork_rng, device_type=NAME)
    for module in (transformers.training_args, trl_prorl.refusals):
        module.is_torch_bf16_gpu_available = lambda: True
    # transformers saves the random state of devices that it knows.
    save = Trainer._save_rng_state
    load = Trainer._load_rng_state

    def save_both(self, output_dir):
        save(self, output_dir)
        torch.save(generator.get_state(), Path(output_dir, "pretend_rng_state.pth"))

    def load_both(self, checkpoint):
        load(self, checkpoint)
        if checkpoint is not None:
            generator.set_state(torch.load(Path(checkpoint, "pretend_rng_state.pth")))

    Trainer._save_rng_state = save_both
    Trainer._load_rng_state = load_both


def save_model(folder: Path, end_factor: float) -> None:
    """
    Save a tiny model with its tokenizer. The logit of the token that ends a completion is multiplied by `end_factor`.
    """
    tokenizer = byte_tokenizer()
    set_seed(3)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,  # heads in groups, as a Qwen has
        initializer_range=0.3,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= end_factor
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)


def make_trainer(cls, model: str, out: Path, lora: dict | None = LORA, questions=None, **keys):
    """Make a trainer of the tests' size."""
    defaults = {
        "output_dir": str(out),
        "max_steps": 4,
        "num_iterations": 2,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        **SETTINGS,
    }
    texts = [f"say {i * 37 % 101}" + "!" * (i % 3) for i in range(16)]
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts]})
    config = ProRLConfig if issubclass(cls, ProRLTrainer) else GRPOConfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(
            model=model,
            args=config(**{**defaults, **keys}),
            reward_funcs=vowels,
            train_dataset=rows,
            eval_dataset=questions,
            processing_class=AutoTokenizer.from_pretrained(model),
            peft_config=LoraConfig(**lora) if lora is not None else None,
        )
