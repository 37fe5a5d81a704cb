"""A training of a test's size: its adapter, its reward, its settings; for the tests and for their processes."""

from contextlib import nullcontext

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

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
    """Reward the share of characters below 'g', which differs within almost every group."""
    texts = [c[-1]["content"] if isinstance(c, list) else c for c in completions]
    return [sum(ord(ch) < 103 for ch in text) / (len(text) + 1) for text in texts]


def constant(value, verifier=None):
    """Make a reward that is `value` for every completion, with a verifier of one's own."""

    def reward(completions, **columns):
        return [value] * len(completions)

    if verifier is not None:
        reward.batch_verifier = verifier
    return reward


def set_evaluations(trainer, *rewards):
    """Replace the rewards of a trainer's evaluations by known ones, in their order, and return the trainer."""
    evaluate = trainer._evaluate
    known = iter(rewards)

    def evaluate_with_known_reward(*args, **kwargs):
        return evaluate(*args, **kwargs) | {"eval_reward": next(known)}

    trainer._evaluate = evaluate_with_known_reward
    return trainer


def record_results(owner, name):
    """Return a list to which a method of an object adds what it returns, call by call."""
    method = getattr(owner, name)
    seen = []

    def recording(*args, **kwargs):
        result = method(*args, **kwargs)
        seen.append(result)
        return result

    setattr(owner, name, recording)
    return seen


class MovedEveryGeneration(GRPOTrainer):
    """Control B with TRL's own code alone: the reference becomes the policy before every generation."""

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            policy = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, param in policy.items():
                    if ".default." in name:
                        policy[name.replace(".default.", ".ref.")].copy_(param)
        return super()._generate_and_score_completions(inputs)


class AtBoundary(Part):
    """Call a function at every generation boundary, after the parts before it."""

    def __init__(self, call):
        self.on_generation = call


def new_model(tokenizer):
    """Return a two-layer Qwen2 with random weights, always the same."""
    set_seed(3)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        hidden_size=32,
        intermediate_size=48,
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def sharpen(model):
    """Make a random model's weights so large that its distribution is not flat, and return the model."""
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.mul_(5.0)
    return model


def save_tiny_model(folder, tokenizer, likely=()):
    """
    Save a two-layer Qwen2 with its tokenizer. Its weights are random, and so large that its distribution is not flat.

    Args:
        folder (`Path`): where it is saved.
        tokenizer (`PreTrainedTokenizerBase`): its vocabulary is the model's.
        likely (`Iterable[str]`, *optional*): tokens that the model says more often.

    Returns:
        `str`: the folder.
    """
    model = sharpen(new_model(tokenizer))
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids([*likely])] *= 4.0
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)
    return str(folder)


TOKENS = torch.tensor([[70, 84, 90, 101, 33, 65, 77, 120]])


def logits(model, adapter=...):
    """
    Compute the logits of `TOKENS`, without the forward that TRL puts in the place of the model's. With `None` as the
    adapter they are the base's.
    """
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    with torch.no_grad(), nullcontext() if adapter is ... else use_adapter(model, adapter):
        return inner.get_output_embeddings()(inner.model(TOKENS).last_hidden_state)


def load_with_new_adapter(path, noise=0.05, dtype="auto", **keys):
    """Load a model with a new adapter, to all of whose factors noise is added."""
    torch.manual_seed(5)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path, dtype=dtype), LoraConfig(**{**LORA, **keys}))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.add_(torch.randn_like(param) * noise)
    return model.eval()


def disturb_adapter(model, size=0.01):
    """Change a model's adapter as training would, from a random state of its own, and return the model."""
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.add_(torch.randn(param.shape, generator=source) * size)
    return model


def load_adapter(model, adapter, dtype="auto", **keys):
    """Load a saved model with a saved adapter."""
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=dtype), adapter, **keys)


def new_trained_adapter(model: str, **config) -> PeftModel:
    """Return a model with an adapter that is not zero, as after earlier training."""
    torch.manual_seed(11)
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(**config))
    with torch.no_grad():
        for name, param in policy.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.05)
    return policy
