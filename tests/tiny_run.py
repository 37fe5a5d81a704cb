"""A training of a test's size: its adapter, its reward, its settings; for the tests and for their processes."""

from contextlib import nullcontext

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from trl_prorl.embedded.making import EmbeddedSettings, new_model
from trl_prorl.parts import Part


LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SETTINGS = {
    "num_generations": 4,
    "max_completion_length": 6,
    "learning_rate": 5e-3,
    "seed": 7,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}
# A run that keeps its best checkpoint, with `QUESTIONS` for its `trainer_kwargs`, and with `evaluated_as`.
BEST = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "per_device_eval_batch_size": 4,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_reward",
    "greater_is_better": True,
    "save_strategy": "steps",
    "save_steps": 2,
}
QUESTIONS = {"eval_dataset": Dataset.from_dict({"prompt": [[{"role": "user", "content": "say 5"}]] * 2})}


def vowels(completions, **columns):
    """A reward that differs within almost every group: the share of bytes below 'g'."""
    texts = [c[-1]["content"] if isinstance(c, list) else c for c in completions]
    return [sum(ord(ch) < 103 for ch in text) / (len(text) + 1) for text in texts]


def constant(value, verifier=None):
    """A reward that is the same for every completion, with a verifier of one's own."""

    def reward(completions, **columns):
        return [value] * len(completions)

    if verifier is not None:
        reward.verifier = verifier
    return reward


def evaluated_as(trainer, *rewards):
    """Evaluations whose rewards are known."""
    evaluate = trainer._evaluate
    known = iter(rewards)
    trainer._evaluate = lambda *args, **kwargs: evaluate(*args, **kwargs) | {"eval_reward": next(known)}
    return trainer


def watched(owner, name):
    """What a method returns from now on, call by call."""
    method = getattr(owner, name)
    seen = []
    setattr(owner, name, lambda *args, **kwargs: seen.append(method(*args, **kwargs)) or seen[-1])
    return seen


class MovedEveryGeneration(GRPOTrainer):
    """The control for B, of TRL's own code alone: its reference becomes the policy before every generation."""

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            policy = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, param in policy.items():
                    if ".default." in name:
                        policy[name.replace(".default.", ".ref.")].copy_(param)
        return super()._generate_and_score_completions(inputs)


class AtBoundary(Part):
    """Calls a function at every generation boundary, after the parts before it."""

    def __init__(self, call):
        self.boundary = call


def save_tiny_model(folder, tokenizer, likely=()):
    """
    A two-layer Qwen2 with random weights, so large that its distribution is not flat, saved with its tokenizer: the
    path. It says some tokens more often.
    """
    model = new_model(EmbeddedSettings(hidden_size=32, layers=2, heads=2, intermediate_size=48, seed=3), tokenizer)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.mul_(5.0)
        model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids([*likely])] *= 4.0
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)
    return str(folder)


TOKENS = torch.tensor([[70, 84, 90, 101, 33, 65, 77, 120]])


def logits(model, adapter=...):
    """Of `TOKENS`, without the forward that TRL puts in the place of the model's; of the base with adapter `None`."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    with torch.no_grad(), nullcontext() if adapter is ... else use_adapter(model, adapter):
        return inner.get_output_embeddings()(inner.model(TOKENS).last_hidden_state)


def adapted(path, noise=0.05, dtype="auto", **keys):
    """A saved model with an adapter, all of whose factors are disturbed."""
    torch.manual_seed(5)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path, dtype=dtype), LoraConfig(**{**LORA, **keys}))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.add_(torch.randn_like(param) * noise)
    return model.eval()


def disturbed(model, size=0.01):
    """A model whose adapter is changed as by training, from a random state of its own."""
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.add_(torch.randn(param.shape, generator=source) * size)
    return model


def loaded(model, adapter, dtype="auto", **keys):
    """A saved model with a saved adapter."""
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=dtype), adapter, **keys)
