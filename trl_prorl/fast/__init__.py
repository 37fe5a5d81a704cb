"""
Accelerations of a step. They change numbers by rounding only, and keep the sampling distribution.

- **Scoring** (`pack_groups`): [`packing`] packs a batch into one row, [`prefix`] separates its sequences in every
  layer; [`head`] and [`lean_lora`] save passes over memory.
- **Sampling** (`compact_generation`): [`compact`] is a loop for `generate`, [`merged_copy`] the policy with its LoRA
  merged, and [`generation`] the part that uses both.

[`acceleration`] decides by lists of tested families ([`families`]). A [`comparison`] with the policy's own forward
confirms it before the first batch. [`any_trainer`] gives shared prompts to TRL's own trainer.
"""


def __getattr__(name: str):
    if name != "pack":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .any_trainer import pack  # imports TRL, for which no acceleration needs to wait

    return pack
