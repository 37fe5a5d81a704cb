"""
A trial of an unlisted family of models, on a tiny model of the same class. `trl-prorl preflight` makes it, and a
trainer for `fast_models`.
"""

import copy

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from ..cli.model_defaults import plain_generation_config
from ..cli.prompts import cut_at_end, pad_left
from ..errors import first_line
from ..upstream.modules import unwrap_adapter
from .generation import sample_at_once
from .head import contiguous_states
from .lean_lora import lean_layers
from .own_forward import allowed, coarsest_unit, mean_difference, own_logps
from .packing import packed_logps
from .prefix import accept_prefixes
from .recording import Recordings


NOISE = 0.3  # of vectors, which most models initialise to ones and zeros
SCALE = 5.0  # of matrices: as initialised, every token is nearly as probable as any other
# Sizes in a tiny model. One that its class does not accept keeps the widths of the given model.
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDTHS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")  # what a model of the given widths changes

# Tokens of each prompt. With absolute positions, padding the short ones matters.
PROMPTS = (3, 61, 8)
COMPLETIONS = 2  # of each prompt
LONGEST = 6  # tokens of a completion
ENDING = 8  # every eighth token ends a completion, so that rows are dropped early
# Share of a gradient's size that may differ in fp32, and in units of the last place of a coarser format.
GRADIENT = 1e-3
GRADIENT_UNITS = 64


def trial_obstacle(acceleration: str, policy: PreTrainedModel | PeftModel) -> str | None:
    """
    Return why an acceleration (a field of [`~trl_prorl.supported.Family`]) does not support a family of models, by a
    trial in fp32; `None` if it does. `policy` is only read.
    """
    if acceleration == "graphed":
        return "a family that is not listed is not recorded."
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model = tiny_model(policy)
        except Exception as error:  # of any kind: the model's own code runs
            return f"no tiny {type(policy).__name__} can be made ({type(error).__name__})."
        try:
            return compare_samples(model) if acceleration == "compact" else compare_packed(model)
        except Exception as error:
            return f"{type(model).__name__} fails in a trial ({first_line(error)})."


def compare_packed(model: torch.nn.Module) -> str | None:
    """
    Return a difference of packed rows' log-probabilities or gradients that rounding does not explain, in one sentence.
    """
    accept_prefixes(model)
    name = type(model).__name__
    device = next(model.parameters()).device
    prompts = draw_prompts(model)
    completions = draw_tokens(model, len(prompts) * COMPLETIONS * LONGEST).view(len(prompts), COMPLETIONS, LONGEST)
    ids, mask = pad_left([prompt for prompt in prompts for _ in range(COMPLETIONS)], 0)  # (R, P)
    ids = torch.cat([ids, completions.flatten(0, 1)], dim=1).to(device)  # (R, P + T)
    mask = torch.cat([mask, torch.ones_like(completions.flatten(0, 1))], dim=1).to(device)
    trained = {key: param for key, param in model.named_parameters() if param.requires_grad}
    weights = torch.linspace(1.0, 2.0, LONGEST * len(ids), device=device).view(len(ids), LONGEST)

    def gradients(logps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (logps * weights).sum()
        return torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)

    own = [own_logps(model, prompt, rows.tolist(), 1.0) for prompt, rows in zip(prompts, completions, strict=True)]
    own = torch.stack([row for rows in own for row in rows])  # (R, T)
    with lean_layers(model):  # as in a run that packs
        packed = packed_logps(model, ids, mask, LONGEST)[0]
    differs = mean_difference(packed.detach(), own.detach())
    if not differs <= allowed(model, None):
        return (
            f"log-probabilities of {name} in packed rows differ from its own forward's by {differs:.2g} nats a token."
        )
    expected = gradients(own)
    unit = coarsest_unit(model, None)
    largest = max(gradient.norm() for gradient in expected)
    for key, found, right in zip(trained, gradients(packed), expected, strict=True):
        off = (found - right).norm()
        # A small gradient may be the rest of large parts, which rounding does not cancel.
        if not off <= max(max(GRADIENT, GRADIENT_UNITS * unit) * right.norm(), unit * largest):
            return f"the gradient of {key} in packed rows differs from its own forward's by {off / right.norm():.2g}."
    return None


@torch.no_grad()
def compare_samples(model: PreTrainedModel | PeftModel, replays: bool = False) -> str | None:
    """
    Return a difference of compact samples' log-probabilities that rounding does not explain, in one sentence.
    `replays`: whether the forward of a token is recorded as a CUDA graph.
    """
    ends = list(range(0, vocabulary_of(model), ENDING))
    settings = {"max_new_tokens": 2 * ENDING, "do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": ends}
    prompts = [prompt for prompt in draw_prompts(model) for _ in range(COMPLETIONS)]
    with plain_generation_config(model), contiguous_states(model):
        config = GenerationConfig(**settings, disable_compile=True)
        drawn, logps = sample_at_once(model, prompts, config, None, 1.0, Recordings() if replays else None)
    found, expected = [], []
    for prompt, row, values in zip(prompts, drawn, logps, strict=True):
        completion = cut_at_end(row, set(ends))
        found += values[: len(completion)]
        expected += own_logps(model, prompt, [completion], 1.0)
    differs = mean_difference(torch.tensor(found), torch.cat(expected).cpu())
    if differs <= allowed(model, None):
        return None
    return f"samples of {type(model).__name__} differ from its own forward by {differs:.2g} nats a token."


def draw_prompts(model: torch.nn.Module) -> list[list[int]]:
    return [prompt.tolist() for prompt in draw_tokens(model, sum(PROMPTS)).split(PROMPTS)]


def draw_tokens(model: torch.nn.Module, number: int) -> torch.Tensor:
    """Draw the same token ids `(number,)` for each vocabulary size."""
    return torch.randint(vocabulary_of(model), (number,), generator=torch.Generator().manual_seed(0))


def vocabulary_of(model: torch.nn.Module) -> int:
    return model.get_input_embeddings().weight.shape[0]


def tiny_model(policy: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """
    Make a tiny model with every kind of layers, random weights, TRL's fused head and, if the model has adapters, a
    LoRA that changes it.
    """
    given = unwrap_adapter(policy)
    settings = {"dtype": torch.float32, "attn_implementation": given.config._attn_implementation}
    try:
        model = type(given)._from_config(tiny_config(given.config, tuple(SIZES)), **settings)
    except Exception:  # sizes that depend on each other
        model = type(given)._from_config(tiny_config(given.config, WIDTHS), **settings)
    model.to(given.device)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if isinstance(policy, PeftModel):
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() == 1 or "lora_B" in name:
                param.add_(NOISE * torch.randn_like(param))
            elif "lora_" not in name:
                param.mul_(SCALE)
    return model.eval()


def tiny_config(config: PretrainedConfig, names: tuple[str, ...]) -> PretrainedConfig:
    """Copy a configuration with tiny sizes of these names, and the first layers of every kind."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    number = text.num_hidden_layers
    per_layer = {name: value for name, value in vars(text).items() if isinstance(value, list) and len(value) == number}
    kinds = list(zip(*per_layer.values(), strict=True)) or [()] * number
    last_new = max(kinds.index(kind) for kind in kinds)
    kept = max(2, last_new + 1)
    for name, value in per_layer.items():
        setattr(text, name, value[:kept])
    text.num_hidden_layers = kept
    for name in names:
        if getattr(text, name, None) is not None:
            setattr(text, name, SIZES[name])
    return config
