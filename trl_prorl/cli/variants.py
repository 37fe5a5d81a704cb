"""The variants, one entry each with its rule, in the order of a report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..config import ProRLConfig


DIFFERENT_OBJECTIVE = (
    "B optimises a different objective from A: its KL term is taken to the policy that sampled the batch, A's to a "
    "reference that moves only at resets."
)
DIFFER_BY_RESETS = ("A", "C", "optimizer-only")  # without a reset they equal the control
NEVER_RESET = "was never reset, so it equals the control"


@dataclass(frozen=True)
class Variant:
    """
    One variant: labels for tables, plots and model cards.

    Attributes:
        name (`str`): Its name in `env.json`.
        when (`Callable`): Returns whether a configuration is of this variant; each is of exactly one.
        short (`str`): Label of two to four words.
        description (`str`): One sentence, without the full stop.
        anchor (`str`): The policy of its KL, for a table.
        recipe (`str`): Effect of such a recipe, for a table.
        colour (`str`): Colour of its lines and bars, from the colour-blind-safe palette of Okabe and Ito; yellow is
            Paul Tol's, because theirs is invisible on white.
        kl (`str`, *optional*, defaults to `"kl_ref"`): Key of the KL to its anchor.
        different_objective (`bool`, *optional*, defaults to `False`):
            Whether its objective differs from A's.
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

    @property
    def label(self) -> str:
        return f"{self.short} ({self.name})" if len(self.name) == 1 else self.short


def has_reference(args: "ProRLConfig") -> bool:
    """Return whether the policy has been its reference; Elastic Reset is a separate variant."""
    return args.beta != 0.0 and args.ref_model is None and not args.elastic_reset_every


def moves_reference(args: "ProRLConfig") -> bool:
    return has_reference(args) and args.resets and args.ref_reset_mix != 0.0


def has_no_reference(args: "ProRLConfig") -> bool:
    return args.beta == 0.0 and not args.elastic_reset_every


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            name="plain",
            when=lambda args: not args.anchored and not args.elastic_reset_every,
            short="no KL",
            description="no KL term: TRL's GRPO without a reference model",
            anchor="none",
            recipe="no KL",
            colour="#000000",
        ),
        Variant(
            name="control",
            when=lambda args: has_reference(args) and not args.resets and not args.sync_ref_model,
            short="fixed reference",
            description="KL to a fixed reference, the starting model",
            anchor="KL to starting model",
            recipe="KL to a fixed reference, the starting model",
            colour="#E69F00",
        ),
        Variant(
            name="A",
            when=lambda args: moves_reference(args) and not args.treats_optimizer,
            short="moving reference",
            description="KL to a frozen reference that is reset to the current policy; the optimizer state is kept",
            anchor="KL to moving reference",
            recipe="KL to a moving reference",
            colour="#0072B2",
        ),
        Variant(
            name="B",
            when=lambda args: has_no_reference(args) and args.beta_old != 0.0,
            short="old policy",
            description="KL to pi_old, the policy that sampled the batch: no reference model and no reference "
            "forward pass; a different objective from A's",
            anchor="KL to pi_old (a different objective)",
            recipe="KL to π_old: a different objective, no reference",
            colour="#D55E00",
            kl="kl_old",
            different_objective=True,
        ),
        Variant(
            name="C",
            when=lambda args: moves_reference(args) and args.treats_optimizer,
            short="moving reference, optimizer reset",
            description="as A, and the optimizer state is reset together with the reference",
            anchor="KL to moving reference",
            recipe="as A, and Adam's state is cleared at each reset",
            colour="#009E73",
        ),
        Variant(
            name="optimizer-only",
            when=lambda args: has_reference(args) and args.resets and args.ref_reset_mix == 0.0,
            short="fixed reference, optimizer reset",
            description="KL to a fixed reference, the starting model, while the optimizer state is reset",
            anchor="KL to starting model",
            recipe="as control, and Adam's state is cleared at each reset",
            colour="#CC79A7",
        ),
        Variant(
            name="elastic",
            when=lambda args: args.elastic_reset_every > 0,
            short="Elastic Reset",
            description="Elastic Reset: the policy is reset to its moving average, the average to the starting model",
            anchor="KL to starting model, if beta > 0",
            recipe="Elastic Reset: the policy is reset to its moving average",
            colour="#56B4E9",
        ),
        Variant(
            name="synced",
            when=lambda args: has_reference(args) and not args.resets and args.sync_ref_model,
            short="averaged reference",
            description="KL to a moving average of the policy, TRL's `sync_ref_model`",
            anchor="KL to average of the policy",
            recipe="KL to a moving average of the policy",
            colour="#999933",
        ),
        Variant(
            name="teacher",
            when=lambda args: args.beta != 0.0 and args.ref_model is not None and not args.elastic_reset_every,
            short="teacher",
            description="KL to a teacher, another model",
            anchor="KL to a teacher",
            recipe="KL to a teacher, another model",
            colour="#44AA99",
        ),
        Variant(
            name="base-anchored",
            when=lambda args: has_no_reference(args) and args.beta_old == 0.0 and args.beta_base != 0.0,
            short="KL to starting model only",
            description="KL to the starting model only, with `beta_base`",
            anchor="KL to starting model",
            recipe="KL to the starting model only",
            colour="#882255",
            kl="kl_base",
        ),
    )
}


def describe_missing_reset(variant: str, keys: Mapping[str, Any], resets: int | None, steps: int | None) -> str | None:
    """
    Describe a run without a reset whose variant equals the control unless it is reset: words to print after its name,
    `None` for other runs. `resets` (`None`: unknown) and `steps` are numbers in its log files.
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
    """Return whether a variant is known to have a different objective from A."""
    return variant in VARIANTS and VARIANTS[variant].different_objective


def variant_of(args: "ProRLConfig") -> str:
    return next(variant.name for variant in VARIANTS.values() if variant.when(args))
