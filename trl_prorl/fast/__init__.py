"""
Accelerations of a step. They change numbers by rounding only, and keep the sampling distribution.

- **Scoring** (`pack_groups`): a prompt is computed once for all its completions, without padding. [`packing`] packs a
  batch into one row, [`prefix`] separates its sequences in every layer; [`head`] and [`lean_lora`] compute a frozen LM
  head and LoRA in fewer passes over memory.
- **Updates** (`merge_micro_batches`): [`merged`] joins the micro-batches of an update, so that a GPU launches less.
- **Sampling** (`compact_generation`): [`compact`] is a loop for `generate` that computes a prompt once and drops
  finished completions; [`merged_copy`] is the policy with its LoRA merged, and [`generation`] the part that uses both.

They are exact: by the model's own layers, every token attends to the same tokens at the same positions and is drawn
from the same distribution; only the order of additions differs. [`acceleration`] decides when a trainer is made, by
the lists of families that tests cover ([`families`]): a family that is not listed disables an acceleration under
`auto` and is an error under `on`. At the first batch two comparisons confirm it ([`first_batch`]). Another family can
be tried on a tiny model ([`trial`]). Both compare with the policy's own forward ([`own_forward`]). In bf16 the merged
copy is also measured in every step, and dropped if it is too far from the policy.

[`any_trainer`] has `pack(trainer)`, which gives shared prompts to TRL's own trainer.

The core imports [`~trl_prorl.fast.acceleration.Acceleration`] in `assembly.py` and the comparisons in `trainer.py`:
the scorer uses its `score`, the trainer its `compact`.
"""


def __getattr__(name: str):
    if name != "pack":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .any_trainer import pack  # imports TRL, for which no acceleration needs to wait

    return pack
