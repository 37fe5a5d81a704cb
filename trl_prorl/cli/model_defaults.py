"""
A model's own generation config: min_p, penalties, suppressed tokens, beams, a minimum length, …

`generate` applies these to everything that a call leaves open, even if it gets a config. Here only the run's keys
decide how completions are drawn, in rollouts and evaluations.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import GenerationConfig

from ..text import cut


# These stay: the tokens at which a text begins and ends, and how a model is computed.
SPECIAL_TOKENS = (
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "pad_token_id",
    "compile_config",
    "disable_compile",
    "prefill_chunk_size",
    "use_cache",
)
NO_SETTING = (*SPECIAL_TOKENS, "_from_model_config", "transformers_version")


def kept_defaults(own: GenerationConfig) -> GenerationConfig:
    return GenerationConfig(**{name: getattr(own, name, None) for name in SPECIAL_TOKENS})


@contextmanager
def plain_generation_config(model) -> Iterator[None]:
    """Remove a model's generation config in this context, except for `SPECIAL_TOKENS`."""
    owners = [model]
    if hasattr(model, "get_base_model"):  # a PeftModel hands the config on to the model below it
        owners.append(model.get_base_model())
    owners = [owner for owner in owners if "generation_config" in vars(owner)]
    before = [owner.generation_config for owner in owners]
    for owner, config in zip(owners, before, strict=True):
        owner.generation_config = kept_defaults(config)
    try:
        yield
    finally:
        for owner, config in zip(owners, before, strict=True):
            owner.generation_config = config


def describe_unused(own: GenerationConfig, run: GenerationConfig) -> str | None:
    """
    Return a line of the settings in a model's generation config that a run does not use; `None` without any.

    Args:
        own (`GenerationConfig`): The model's.
        run (`GenerationConfig`): With which the run samples.

    Returns `str` or `None`: `None` if there is nothing.
    """
    neutral = GenerationConfig._get_default_generation_params()
    unused = []
    for name, value in own.to_dict().items():
        used = getattr(run, name, None)
        is_default = not value or value == neutral.get(name)  # 0, False and an empty list switch a setting off
        if name in NO_SETTING or is_default or value == used:
            continue
        unused.append(f"{name}={cut(str(value), 60)}")
    if not unused:
        return None
    return f"ignored from the model's generation config: {', '.join(unused)}. Only the run's own keys apply."
