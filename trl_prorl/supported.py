"""
Lists of what the trainer trains: keys, checks, help, docs/supported.md and the tests read them. Anything else raises
an error, or runs without an acceleration. Nothing slow is imported.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple

from .errors import InputError
from .text import short


PAGE = "docs/supported.md"

# ----------------------------------------------------------------------------------------------------------- adapters

OF_ANY_ADAPTER = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules"
).split()
# By PEFT's names, with the options that may differ from their defaults.
ADAPTERS: dict[str, list[str]] = {
    "LORA": (
        "r lora_alpha lora_dropout init_lora_weights eva_config use_rslora use_dora rank_pattern alpha_pattern bias "
        "lora_bias modules_to_save ensure_weight_tying trainable_token_indices target_parameters exclude_modules "
        "layers_to_transform layers_pattern fan_in_fan_out"
    ).split(),
    "IA3": ["feedforward_modules"],
    "LOKR": ["r", "alpha"],
    "OFT": ["oft_block_size"],
    "VERA": ["r"],
}
PACKED_ADAPTERS = ("LORA",)  # their output does not depend on a token's place in a row
# Initialisations of LoRA. Others change the base model's weights, which no checkpoint contains.
INITIALISATIONS = (True, False, "gaussian", "orthogonal", "eva", "mica")

# options of LoRA that keys of ours need
PATTERNS = ("rank_pattern", "alpha_pattern")
ALIKE = frozenset(ADAPTERS["LORA"]) - {*PATTERNS}  # the same rank in every layer
PRODUCTS = ALIKE - {"use_dora", "modules_to_save", "trainable_token_indices", "bias", "lora_bias"}
ADAPTER_OPTIONS = {
    "lora_growth_every": ALIKE - {"target_parameters"},
    "vllm_enable_lora": PRODUCTS,
    "compact_merge": frozenset(ADAPTERS["LORA"]),
}
UNALIKE_INITIALISATIONS = ("mica",)  # these freeze one factor

QUANTISATIONS = ("bitsandbytes 4-bit", "bitsandbytes 8-bit")

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
# Means over the tokens of a batch; the others are means over its completions.
TOKEN_LOSSES = tuple(name for name, loss in LOSS_TYPES.items() if loss.aggregation in ("batch_mean", "window"))
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
ENDLESS_SCHEDULES = frozenset(name for name, schedule in SCHEDULES.items() if schedule.is_endless)
PATH_DEPENDENT_SCHEDULES = frozenset(name for name, schedule in SCHEDULES.items() if schedule.follows_rates)

# --------------------------------------------------------------------------------------------------------- processes


class Distribution(NamedTuple):
    """
    A way to train in several processes.

    Attributes:
        features (`frozenset[str]`): Names of [`FEATURES`].
        file (`str`, *optional*): Its file in `accelerate_configs`.
    """

    features: frozenset[str]
    file: str | None = None


FEATURES = {
    "reference": "a moving reference",
    "saved_reference": "a checkpoint of a moving full-model reference",
    "copies": "`beta_base`",
    "elastic": "`elastic_reset_every`",
    "treatment": "`optimizer_reset`, a restart of the schedule, a re-warm-up",
    "vllm_enable_lora": "`vllm_enable_lora`",
    "lora_growth_every": "`lora_growth_every`",
}
DISTRIBUTIONS = {
    "one process": Distribution(frozenset(FEATURES), "single_gpu.yaml"),
    "DDP": Distribution(frozenset(FEATURES) - {"lora_growth_every"}, "multi_gpu.yaml"),
    "FSDP": Distribution(frozenset(["reference", "treatment"]), "fsdp2.yaml"),
    "DeepSpeed ZeRO-2": Distribution(frozenset(["reference", "saved_reference", "copies"]), "zero2.yaml"),
}

# ------------------------------------------------------------------------------------------------------------ metrics

# Metrics of an evaluation besides rewards and pass@k, by the first part of a name.
EVALUATED = frozenset(
    "reward reward_std loss frac_reward_zero_std entropy kl num_tokens policy_loss entropy_coef aux_loss "
    "cispo_clip_ratio runtime samples_per_second steps_per_second completions clip_ratio tools sampling vespo".split()
)

# ----------------------------------------------------------------------------------------------------------- versions

VERSIONS = {"trl": "1.16.0", "transformers": "5.24.0", "peft": "0.21.2"}  # the newest with which all tests passed


# ------------------------------------------------------------------------------------------------------------- checks


def check_adapters(configs: Mapping[str, Any]) -> None:
    """Raise `InputError` for an adapter that is not listed, by the names of the adapters."""
    for name, config in configs.items():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind not in ADAPTERS:
            raise _refusal(name, f"peft_type={kind}", f"full fine-tuning and {', '.join(ADAPTERS)}")
        for option, value in changed_options(config).items():
            if option not in (*OF_ANY_ADAPTER, *ADAPTERS[kind]):
                raise _refusal(name, f"{option}={short(value)}", f"for {kind} {', '.join(ADAPTERS[kind])}")
        init = getattr(config, "init_lora_weights", True)
        if init not in INITIALISATIONS:
            raise _refusal(name, f"init_lora_weights={init!r}", ", ".join(map(repr, INITIALISATIONS)))


def check_options(config: Any | None, key: str, value: Any) -> None:
    """
    Raise `InputError`, before a model is loaded, for an adapter that a key of [`ADAPTER_OPTIONS`] does not support.
    """
    given = f"{key}={value!r}"
    if config is None:
        raise InputError(
            f"{given} needs a LoRA adapter named 'default', and the model has none. Set use_peft: true (in a script, "
            f"pass a peft_config), or remove {key}."
        )
    other = other_options(config, key)
    init = getattr(config, "init_lora_weights", True)
    if init in UNALIKE_INITIALISATIONS:
        other.append(f"init_lora_weights={init!r}")
    if other:
        raise InputError(
            f"{given} does not support {', '.join(other)} of the adapter. Supported: LoRA with "
            f"{', '.join(name for name in ADAPTERS['LORA'] if name in ADAPTER_OPTIONS[key])}. Remove one or the other."
        )


def other_options(config: Any, key: str) -> list[str]:
    """Return the options of an adapter beyond those of a key of [`ADAPTER_OPTIONS`]: `option=value` each."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        return [f"peft_type={kind}"]
    known = {*OF_ANY_ADAPTER, *ADAPTER_OPTIONS[key]}
    return [f"{name}={short(value)}" for name, value in changed_options(config).items() if name not in known]


def check_quantisation(config: Any | None) -> None:
    """Raise `InputError` for a quantisation that is not listed, of a model or to load one with."""
    if config is None:
        return
    values = config if isinstance(config, Mapping) else config.to_dict()
    method = getattr(values.get("quant_method"), "value", values.get("quant_method"))
    bits = "4-bit" if values.get("load_in_4bit") else "8-bit" if values.get("load_in_8bit") else ""
    name = f"{method} {bits}".strip()
    if name not in QUANTISATIONS:
        raise InputError(
            f"quantization_config: {name} is not supported: no test trains it. TRL's own GRPOTrainer accepts it. "
            f"Supported: {', '.join(QUANTISATIONS)}."
        )


def check_distribution(name: str, needed: Mapping[str, str], details: str = "") -> None:
    """
    Raise `InputError` for a distribution that is not listed, or that lacks a feature.

    Args:
        name (`str`): One of [`DISTRIBUTIONS`].
        needed (`Mapping[str, str]`): Names of [`FEATURES`], with the key and value that need them.
        details (`str`, *optional*): More about the processes.
    """
    if name not in DISTRIBUTIONS:
        listed = ", ".join(f"{other} ({way.file})" for other, way in DISTRIBUTIONS.items())
        raise InputError(
            f"{name}{details} is not supported: no test trains with it. Supported, accelerate_configs: {listed}."
        )
    for feature, given in needed.items():
        if feature not in DISTRIBUTIONS[name].features:
            others = [
                f"{other} (accelerate_configs/{way.file})"
                for other, way in DISTRIBUTIONS.items()
                if feature in way.features
            ]
            raise InputError(f"{given} is not supported with {name}{details}. Use {', or '.join(others)}.")


def default_of(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def changed_options(config: Any) -> dict[str, Any]:
    changed = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if value != default_of(field) and value not in (None, {}, []):
            changed[field.name] = value
    return changed


def _refusal(name: str, given: str, supported: str) -> InputError:
    return InputError(
        f"{given} of the adapter {name!r} is not supported: no test shows that it is sampled, moved, saved and "
        f"resumed as it is trained. TRL's own GRPOTrainer accepts it. Supported: {supported}."
    )
