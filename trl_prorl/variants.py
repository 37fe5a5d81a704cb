"""
The variants: one entry each, in the order of a report. Every table, picture and model card reads them here.

A new variant is an entry here, with its rule, and a recipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .config import ProRLConfig


DIFFERENT_OBJECTIVE = (
    "B optimises a different objective from A: its KL term is taken to the policy that sampled the batch, A's to a "
    "reference that moves only at resets."
)
DIFFER_BY_RESETS = ("A", "C", "optimizer-only")  # from the control
NEVER_RESET = "never reset: it is the control"


@dataclass(frozen=True)
class Variant:
    """
    One variant.

    Attributes:
        name (`str`): As [`ProRLConfig.variant`] gives it and `env.json` records it.
        when (`Callable`): Whether a configuration is of this variant. Every configuration is of exactly one.
        short (`str`): What it is in a few words, in a list of variants.
        description (`str`): What it is in a sentence, without the full stop.
        anchor (`str`): What its KL is taken to, in a cell of a table.
        recipe (`str`): What a recipe of it does, in a table of recipes.
        colour (`str`): Of its lines and bars: from Okabe & Ito's palette, which colour-blind readers can tell apart,
            and from Paul Tol's in the place of its yellow, which is lost on white.
        kl (`str`, *optional*, defaults to `"kl_ref"`): The key of the record that holds the KL to its own anchor.
        different_objective (`bool`, *optional*, defaults to `False`):
            Whether it optimises another objective than A, which report and model card then say.
    """

    name: str
    when: Callable[["ProRLConfig"], bool]
    short: str
    description: str
    anchor: str
    recipe: str
    colour: str
    kl: str = "kl_ref"
    different_objective: bool = False


def has_reference(args: "ProRLConfig") -> bool:
    """Return whether it has a reference; Elastic Reset is a variant of its own."""
    return args.beta != 0.0 and not args.elastic_reset_every


def moves_reference(args: "ProRLConfig") -> bool:
    """Return whether its reference is reset."""
    return has_reference(args) and args.resets and args.ref_reset_mix != 0.0


def has_no_reference(args: "ProRLConfig") -> bool:
    """Return whether it has no reference, and is no Elastic Reset."""
    return args.beta == 0.0 and not args.elastic_reset_every


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            name="plain",
            when=lambda args: not args.anchored and not args.elastic_reset_every,
            short="no KL",
            description="no KL term at all: TRL's GRPO without a reference model",
            anchor="none",
            recipe="no KL",
            colour="#000000",
        ),
        Variant(
            name="control",
            when=lambda args: has_reference(args) and not args.resets,
            short="a reference that never moves",
            description="KL to the initial policy, a reference that is never reset",
            anchor="KL to initial policy",
            recipe="KL to the initial policy, which never moves",
            colour="#E69F00",
        ),
        Variant(
            name="A",
            when=lambda args: moves_reference(args) and not args.treats_optimizer,
            short="a reference that is reset",
            description="KL to a frozen reference that is set to the policy at each reset; the optimizer is kept",
            anchor="KL to moving reference",
            recipe="KL to a moving reference",
            colour="#0072B2",
        ),
        Variant(
            name="B",
            when=lambda args: has_no_reference(args) and args.beta_old != 0.0,
            short="no reference, KL to the sampling policy",
            description="KL to pi_old, the policy that sampled the batch: no reference model and no reference "
            "forward; a different objective from A's",
            anchor="KL to pi_old (a different objective)",
            recipe="KL to π_old: a different objective, no reference",
            colour="#D55E00",
            kl="kl_old",
            different_objective=True,
        ),
        Variant(
            name="C",
            when=lambda args: moves_reference(args) and args.treats_optimizer,
            short="as A, optimizer reset too",
            description="as A, and the optimizer's state is reset together with the reference",
            anchor="KL to moving reference",
            recipe="as A, and Adam's state is cleared at each reset",
            colour="#009E73",
        ),
        Variant(
            name="optimizer-only",
            when=lambda args: has_reference(args) and args.resets and args.ref_reset_mix == 0.0,
            short="a reference that stays, optimizer reset",
            description="KL to the initial policy, whose reference stays while the optimizer's state is reset",
            anchor="KL to initial policy",
            recipe="as the control, and Adam's state is cleared at each reset",
            colour="#CC79A7",
        ),
        Variant(
            name="elastic",
            when=lambda args: args.elastic_reset_every > 0,
            short="the policy reset to its moving average",
            description="Elastic Reset: the policy becomes its moving average, the average the initial policy",
            anchor="KL to initial policy, where beta > 0",
            recipe="Elastic Reset: back to the moving average of the policy",
            colour="#56B4E9",
        ),
        Variant(
            name="base-anchored",
            when=lambda args: has_no_reference(args) and args.beta_old == 0.0 and args.beta_base != 0.0,
            short="KL to the base policy alone",
            description="KL to the base policy alone, by `beta_base`",
            anchor="KL to base policy",
            recipe="KL to the base policy alone",
            colour="#882255",
            kl="kl_base",
        ),
    )
}


def describe_missing_reset(variant: str, keys: Mapping[str, Any], resets: int | None, steps: int | None) -> str | None:
    """
    Describe a run without a reset, if its variant differs from the control by resets alone.

    Args:
        variant (`str`): The name of its variant.
        keys (`Mapping[str, Any]`): Its configuration.
        resets (`int`, *optional*): How many resets are on record. `None`: that is not known.
        steps (`int`, *optional*): How many optimizer steps are on record.

    Returns:
        `str` or `None`: Words that follow the run's name: "has not been reset yet". `None`: there is nothing to say.
    """
    if variant not in DIFFER_BY_RESETS or resets != 0:
        return None
    last_step = keys.get("max_steps") or 0
    if last_step <= 0:
        return "has not been reset"
    if (steps or 0) < last_step:
        return "has not been reset yet"
    return NEVER_RESET


def optimises_another_objective(variant: str) -> bool:
    """Return whether a variant, by its name, is known to optimise another objective than A."""
    return variant in VARIANTS and VARIANTS[variant].different_objective


def variant_of(args: "ProRLConfig") -> str:
    """Return the name of a configuration's variant."""
    return next(variant.name for variant in VARIANTS.values() if variant.when(args))
