"""What the variants are, in words that every report and model card uses."""

VARIANT_DESCRIPTIONS = {
    "plain": "no KL term at all: TRL's GRPO without a reference model",
    "control": "KL to the initial policy, a reference that is never reset",
    "A": "KL to a frozen reference that is set to the policy at each reset; the optimizer is kept",
    "B": "KL to pi_old, the policy that sampled the batch: no reference model and no reference forward; a different "
    "objective from A's",
    "C": "as A, and the optimizer's state is reset together with the reference",
    "optimizer-only": "KL to the initial policy, whose reference stays while the optimizer's state is reset",
    "base-anchored": "KL to the base policy alone, by `beta_base`",
    "elastic": "Elastic Reset: the policy becomes its moving average, the average the initial policy",
}

DIFFERENT_OBJECTIVE = (
    "B optimises a different objective from A: its KL term is taken to the policy that sampled the batch, A's to a "
    "reference that moves only at resets."
)
