"""
Lists of what the trainer trains: keys, checks, help, docs/supported.md and the tests read them. Anything else raises
an error, or runs without an acceleration. Nothing slow is imported.
"""

from dataclasses import MISSING, Field
from typing import Any, NamedTuple

from .errors import InputError


PAGE = "docs/supported.md"

# ----------------------------------------------------------------------------------------------------------- adapters

# Initialisations of LoRA. Others change the base model's weights, which no checkpoint contains.
INITIALISATIONS = (True, False, "gaussian", "orthogonal", "eva")

# Options of LoRA with which another layer or another model is trained.
OTHER_LORA = ("alora_invocation_tokens", "kasa_config", "use_qalora")

# ----------------------------------------------------------------------------------------------------------- families


class Family(NamedTuple):
    """
    A family of models, and the attentions (`attn_implementation`) that `fast` supports.

    Attributes:
        shared_prompts (`tuple[str, ...]`): A prompt is scored once for all its completions (`pack_groups`).
        compact (`tuple[str, ...]`): A prompt is sampled once for all its completions (`compact_generation`).
        graphed (`tuple[str, ...]`): On a GPU, compact generation records a token as a CUDA graph.
        has_state (`bool`): Whether layers carry a state from token to token.
    """

    shared_prompts: tuple[str, ...] = ()
    compact: tuple[str, ...] = ()
    graphed: tuple[str, ...] = ()
    has_state: bool = False


SDPA = ("sdpa",)
BOTH = ("sdpa", "eager")
ATTENDING = Family(SDPA, BOTH)
GRAPHED = Family(SDPA, BOTH, graphed=SDPA)
WITH_STATE = Family(SDPA, BOTH, has_state=True)
GRAPHED_STATE = Family(SDPA, BOTH, graphed=SDPA, has_state=True)
# By `model_type` of the model itself, as its configuration has it.
FAMILIES = {
    "gemma": GRAPHED,
    "gemma2": Family(compact=("eager",)),
    "gemma3_text": GRAPHED,
    "gemma4_text": GRAPHED,
    "glm4": GRAPHED,
    "gpt2": Family(compact=BOTH),
    "granite": GRAPHED,
    "granitemoehybrid": WITH_STATE,
    "lfm2": GRAPHED_STATE,
    "llama": GRAPHED,
    "mamba": Family(compact=("eager",), has_state=True),
    "ministral3": GRAPHED,
    "mistral": GRAPHED,
    "mixtral": ATTENDING,
    "olmo2": GRAPHED,
    "olmo3": GRAPHED,
    "phi3": GRAPHED,
    "qwen2": GRAPHED,
    "qwen2_moe": ATTENDING,
    "qwen3": GRAPHED,
    "qwen3_5": GRAPHED_STATE,
    "qwen3_5_text": GRAPHED_STATE,
    "qwen3_moe": ATTENDING,
    "qwen3_next": WITH_STATE,
    "smollm3": GRAPHED,
}
# Learned positions, which TRL does not pass.
LEARNED_POSITIONS = ("biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "xglm")
# Rotary positions (`rope_type`). With others, frequencies depend on the longest row of a call.
POSITIONS = ("default", "linear", "llama3", "yarn", "proportional")

# ------------------------------------------------------------------------------------------------------------- losses


class Loss(NamedTuple):
    """
    A loss type of TRL.

    Attributes:
        aggregation (`str`): A name of [`AGGREGATIONS`].
        clipped (`bool`): Whether it clips the importance ratio.
    """

    aggregation: str
    clipped: bool


AGGREGATIONS = {
    "row_mean": "mean of a row's tokens, then of rows",
    "row_sum": "sum of a row's tokens, then the mean of rows",
    "batch_mean": "mean of the micro-batch's tokens",
    "length": "sum over rows · `max_completion_length`",
    "window": "mean of the tokens of an accumulation window, over all processes",
}
LOSS_TYPES = {
    "grpo": Loss("row_mean", clipped=True),
    "bnpo": Loss("batch_mean", clipped=True),
    "dr_grpo": Loss("length", clipped=True),
    "dapo": Loss("window", clipped=True),
    "luspo": Loss("row_sum", clipped=True),
    "sapo": Loss("row_mean", clipped=False),
    "cispo": Loss("window", clipped=False),
    "vespo": Loss("window", clipped=False),
}
CLIPPED_LOSSES = tuple(name for name, loss in LOSS_TYPES.items() if loss.clipped)
IMPORTANCE_LEVELS = ("token", "sequence")
KL_ESTIMATORS = ("k1", "k2", "k3")
# Trust regions in place of the clip (`trust_region`), and their usual thresholds: DPPO's of verl's scripts and the
# paper's figure 19, IPO's of prime-rl since its PR 3586 (0.1 before), M2PO's of the paper's section 5.2.
TRUST_REGIONS = {"dppo_tv": 0.15, "dppo_kl": 0.05, "ipo": 0.3, "m2po": 0.04}


class Advantage(NamedTuple):
    """
    An estimator of advantages (`advantage_estimator`).

    Attributes:
        over_batch (`bool`): Whether it needs a mean or a deviation of the batch.
        by_group (`bool`): Whether it compares a completion with the others of its prompt.
    """

    over_batch: bool = False
    by_group: bool = True


ADVANTAGES = {
    "raw": Advantage(by_group=False),
    "centered": Advantage(),
    "group_normalized": Advantage(),
    "batch_normalized": Advantage(over_batch=True),
    "global_normalized": Advantage(over_batch=True, by_group=False),
    "rloo": Advantage(),
    "max": Advantage(),
    "best_of_group": Advantage(),
}
UNGROUPED = tuple(name for name, estimator in ADVANTAGES.items() if not estimator.by_group)

# ------------------------------------------------------------------------------------------- optimizers and schedules


class Optimizer(NamedTuple):
    """
    State of an optimizer.

    Attributes:
        memory (`frozenset[str]`): Names of [`MEMORY`].
        first_needs (`str`, *optional*): Argument without which it has no first moment.
        grows (`bool`): Whether `lora_growth_every` can lengthen its state.
    """

    memory: frozenset[str]
    first_needs: str | None = None
    grows: bool = False


MEMORY = {"first": "the first moment", "second": "the second moment", "step": "the step count"}
ADAM_MEMORY = frozenset(MEMORY)
BITSANDBYTES = "Adam Adam8bit AdamW AdamW8bit PagedAdam PagedAdam8bit PagedAdamW PagedAdamW8bit".split()
# A subclass counts as its base.
OPTIMIZERS = {
    "torch.Adam": Optimizer(ADAM_MEMORY, grows=True),
    "torch.AdamW": Optimizer(ADAM_MEMORY, grows=True),
    "torch.SGD": Optimizer(frozenset(["first"]), first_needs="momentum", grows=True),
    "torch.Adafactor": Optimizer(frozenset(["second"])),
    "transformers.Adafactor": Optimizer(ADAM_MEMORY - {"step"}, first_needs="beta1"),
    **{f"bitsandbytes.{name}": Optimizer(ADAM_MEMORY) for name in BITSANDBYTES},
}


def find_optimizer(cls: type) -> str | None:
    """Return the name in [`OPTIMIZERS`] of a class, or of its nearest base; `None` if it has none."""
    for base in cls.__mro__:
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name in OPTIMIZERS:
            return name
    return None


class Schedule(NamedTuple):
    """
    A schedule of the learning rate.

    Attributes:
        restarts (`bool`): Whether a reset can start it again.
        is_endless (`bool`): Whether a step's rate is independent of the run's length.
        follows_rates (`bool`): Whether its rate depends on earlier rates, not on the step alone.
    """

    restarts: bool = True
    is_endless: bool = False
    follows_rates: bool = False


# By transformers' names (`lr_scheduler_type`).
SCHEDULES = {
    "linear": Schedule(),
    "cosine": Schedule(),
    "cosine_with_restarts": Schedule(),
    "polynomial": Schedule(),
    "constant": Schedule(is_endless=True),
    "constant_with_warmup": Schedule(is_endless=True),
    "inverse_sqrt": Schedule(),
    "cosine_with_min_lr": Schedule(),
    "cosine_warmup_with_min_lr": Schedule(),
    "warmup_stable_decay": Schedule(),
    "reduce_lr_on_plateau": Schedule(restarts=False, follows_rates=True),
    "greedy": Schedule(restarts=False, follows_rates=True),
}

# ------------------------------------------------------------------------------------------------------------- checks


def check_adapter(config: Any | None, keys: str) -> None:
    """
    Raise `InputError` for an adapter that a reference, a copy of the starting policy or vLLM (by `keys`) would not
    score or sample as it is trained.
    """
    if config is None:
        return
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise InputError(f"{keys} needs LoRA, but the adapter has peft_type={kind}. Train LoRA, or remove {keys}.")
    settings = {"init_lora_weights": config.init_lora_weights, "bias": config.bias}
    settings |= {option: getattr(config, option) for option in OTHER_LORA if getattr(config, option, None)}
    is_supported = config.init_lora_weights in INITIALISATIONS and config.bias == "none" and len(settings) == 2
    if not is_supported:
        described = ", ".join(f"{option}={value!r}" for option, value in settings.items())
        raise InputError(
            f"{keys} is not supported with {described} of the adapter, which change the model itself. Set "
            f"init_lora_weights to one of {', '.join(map(repr, INITIALISATIONS))}, bias='none', and remove others."
        )


def default_of(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
