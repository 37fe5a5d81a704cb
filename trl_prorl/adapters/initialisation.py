"""LoRA initialisations that change the model: PiSSA, OLoRA, CorDA, LoRA-GA, LoftQ and KaSA. They are refused."""

from typing import Any


CHANGES_THE_MODEL = ("pissa", "olora", "corda", "lora_ga", "loftq")


def changes_model(config: Any) -> bool:
    """Whether an adapter of this [`~peft.PeftConfig`] changes the weights of the model that it is added to."""
    init = str(getattr(config, "init_lora_weights", None)).lower()
    return init.startswith(CHANGES_THE_MODEL) or bool(getattr(config, "kasa_config", None))


def check_initialisation(config: Any) -> None:
    """
    Refuse an adapter whose initialisation changes the model: no file holds the changed weights, so that a resume, a
    reference and the saved adapter would belong to different models.

    Args:
        config ([`~peft.PeftConfig`], *optional*): Of the adapter.

    Raises `ValueError`: naming the key and the cure.
    """
    if config is not None and changes_model(config):
        key, value = "init_lora_weights", getattr(config, "init_lora_weights", None)
        if getattr(config, "kasa_config", None):
            key, value = "kasa_config", "…"
        raise ValueError(
            f"{key}={value!r} changes the model's own weights, which no checkpoint holds: a resume, the reference and "
            "the saved adapter would belong to different models. Set init_lora_weights: true (PiSSA is reported to "
            "collapse in RL with verifiable rewards, arXiv 2512.23165)."
        )
