"""
Which way rollouts are sampled: by transformers' `generate`, or compactly (compact.py), from the policy or a merged
copy of it.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from ..parts import Part, fired
from ..scoring.first_layers import tried_on_first_layers
from .compact import compact_sample, contiguous_states, distinct, padded_left, until_end
from .merged_copy import MergedCopy, why_not_merged


# Nats a token by which a merged copy may differ from the policy on average. In fp32 it differs by rounding, some 1e-6.
# In bf16 the weights round by up to 0.4 %; of the mismatch between vLLM and trainers in bf16, 0.01 to 0.02 are
# reported as harmless. A deep model in bf16 is that far from itself already: scored in one batch, it is 0.03 to 0.05
# off what it was as it wrote token by token. So a copy beyond the bound is compared with the policy, and stays where
# it adds no more than a second rounding of the same size, √2, would.
MERGED_BOUND, MORE_THAN_POLICY = 0.05, 1.5
# Settings of a generation whose loop is another one, or which keep something of every row beside the cache.
PLAIN = dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_return_sequences", "use_cache"), (None, 1))
PLAIN |= dict.fromkeys(("encoder_no_repeat_ngram_size", "token_healing"), (None, 0))
PLAIN |= dict.fromkeys(("prefill_chunk_size", "watermarking_config"), (None,))
PLAIN |= {"cache_implementation": (None, "dynamic")}


def as_generated(config: GenerationConfig, own: GenerationConfig) -> GenerationConfig:
    """Settings of a generation as `generate` completes them: by the model's own where they leave something open."""
    config = copy.deepcopy(config)
    config.update(**own.to_dict(), defaults_only=True, allow_custom_entries=True)
    return config


def why_not_compact(config: GenerationConfig) -> str | None:
    """Why a generation with these settings cannot be compact, in one sentence, or `None`."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        return f"the settings of the generation ask for {mode.value.replace('_', ' ')}, which keeps rows together."
    for key, plain in PLAIN.items():
        if (value := getattr(config, key, None)) not in plain:
            return f"{key}={value!r} needs transformers' own loop."
    return None


class CompactGeneration(Part):
    """
    Samples completions of prompts, from a merged copy of the policy where there can be one. `autocasts`: whether the
    policy computes in a lower precision than its weights have when it is scored.

    Attributes:
        merged (`str`): `"on"`, or `"off"` with the reason why the policy itself is sampled.
        measures (`bool`): Whether the last completions came with log-probabilities of the copy. Those of a rollout
            function with a sampler of its own say nothing about the copy.
    """

    may_join = True  # "auto" may find possible here what was not where the run began

    def __init__(self, policy: torch.nn.Module, temperature: float, autocasts: bool = False):
        reason = tried_on_first_layers(policy, partial(why_not_merged, policy))
        self.merged = "on" if reason is None else f"off: {reason}"
        self._mergeable = policy if reason is None else None
        self.measures = False
        # Rounding of a copy in fp32 is that of any other order of additions: nothing to measure.
        rounds = any(param.dtype != torch.float32 for param in policy.parameters() if param.is_floating_point())
        self._measured_at = temperature if rounds or autocasts else None
        self.copy = self._temperature = None
        self.begin()

    def facts(self) -> dict[str, str | int]:
        """For `env.json`: whether rollouts are sampled from a merged copy, and the memory that it takes."""
        return {"merged_copy": self.merged, "merged_copy_bytes": self.copy.bytes if self.copy is not None else 0}

    @torch.no_grad()
    def sample(
        self, model, prompts: list[list[int]], config: GenerationConfig, ends: list[int], multiple: int | None = None
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """
        One completion of each prompt, both as token ids, by the policy, unwrapped and ready to generate; equal prompts
        are computed once, padded to a `multiple`. The tokens in `ends` end a completion and are part of it. With the
        completions come their log-probabilities under the merged copy, if it rounds otherwise than the policy.
        """
        different, copies = distinct(prompts)
        device = next(model.parameters()).device
        ids, mask = (part.to(device) for part in padded_left(different, config.pad_token_id, multiple))
        if self.copy is not None and self._of_copy is None:
            self.copy.refresh()
            self.copy.model.generation_config = model.generation_config
            self.copy.model.train(model.training)
            model = self.copy.model
        settings = {"copies": torch.tensor(copies, device=device), "logps_at": self._temperature}
        settings |= {"generation_config": config, "custom_generate": compact_sample}
        try:
            with contiguous_states(model):
                drawn = model.generate(input_ids=ids, attention_mask=mask, **settings)
        finally:
            if self.copy is not None:
                self.copy.release()
        self.measures = drawn.logps is not None
        completions = [until_end(row, set(ends)) for row in drawn.ids[:, ids.shape[1] :].tolist()]
        if drawn.logps is None:
            return completions, None
        logps = drawn.logps.tolist()
        return completions, [row[: len(ids)] for row, ids in zip(logps, completions, strict=True)]

    def take_logps(self, batch: dict[str, Any]) -> torch.Tensor | None:
        """Take the sampler's log-probabilities out of a batch, `(B, T)`; `None` where they say nothing of the copy."""
        given = batch.pop("sampling_per_token_logps", None)
        return given if self.measures else None

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        """
        Go on with the policy itself where the copy is too far from it, by `mean_abs_dlogp_sampler`. First one
        generation comes from the policy, to see how far that is from itself.
        """
        difference = row.get("mean_abs_dlogp_sampler")
        if self.copy is None or difference is None:
            return None
        if self._of_copy is None:
            self._of_copy = difference if difference > self._bound else None
            return None
        of_copy, self._of_copy = self._of_copy, None
        self._bound = max(MERGED_BOUND, MORE_THAN_POLICY * difference)
        if of_copy <= self._bound:
            return None
        self._unmerge(f"the copy was {of_copy:.2g} nats a token off the policy, which is {difference:.2g} off itself")
        return fired("unmerged_generation", step, step, "copy_off_policy", of_copy, self._bound)

    def _unmerge(self, reason: str) -> None:
        self.copy, self._temperature, self.merged = None, None, f"off: {reason}"

    # ------------------------------------------------------------------------------- as a part, see parts.py

    def begin(self) -> None:
        self._of_copy: float | None = None  # while the policy itself is sampled, for comparison
        self._bound = MERGED_BOUND
        if self.copy is None and self._mergeable is not None:
            self.copy, self._temperature, self.merged = MergedCopy(self._mergeable), self._measured_at, "on"

    def state_dict(self) -> dict[str, Any]:
        compared = {"of_copy": self._of_copy, "bound": self._bound}
        return {"merged": self.merged, "measures": self.measures, **compared}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.measures = state["measures"]
        # A checkpoint of an earlier version has neither.
        self._of_copy, self._bound = state.get("of_copy"), state.get("bound", MERGED_BOUND)
        if self.copy is not None and state["merged"] != "on":
            self._unmerge(state["merged"].partition(": ")[2])
