"""
The accelerations of a step, none of which changes a number by more than rounding or draws from another distribution.

- **Scoring** (`pack_groups`): a prompt is computed once for all its completions, and no padding. [`packing`] puts a
  batch into one row, [`prefix`] keeps its sequences apart in every layer; [`head`] and [`lean_lora`] compute a frozen
  LM head and LoRA in fewer passes over memory.
- **Sampling** (`compact_generation`): [`compact`] is a loop for `generate` that computes a prompt once and drops a
  completion that has ended; [`merged_copy`] is the policy with its LoRA merged, and [`generation`] the part that uses
  both.

What makes it exact: every token attends to the same tokens at the same positions and is drawn from the same
distribution, by the model's own layers; only the order of additions differs. Where that is not certain, it is asked:
[`probes`] knows what stands against an acceleration of a model, and compares the model's own numbers on a few tokens
([`trial`]). [`acceleration`] decides by them, once, when a trainer is made: an obstacle switches an acceleration off
under `auto` and is an error under `on`. In bf16 the merged copy is measured in every step, too, and given up where it
is too far from the policy.

The core imports [`~trl_prorl.fast.acceleration.Acceleration`] in `assembly.py`, and nothing else: the scorer gets its
`score`, the trainer its `compact`.
"""
