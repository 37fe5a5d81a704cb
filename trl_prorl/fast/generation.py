"""Sample rollouts by `generate` or by the compact loop, from the policy or its merged copy."""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from ..cli.model_defaults import kept_defaults
from ..cli.prompts import cut_at_end, find_distinct, pad_left
from ..parts import Event, Part, Row, make_event
from ..run.log_files import UNMERGED
from .choice import Choice
from .compact import compact_sample
from .head import contiguous_states
from .merged_copy import MergedCopy, merge_obstacle
from .recording import Recordings, usable_bytes


logger = logging.getLogger(__name__)

# Token ids of completions, and their log-probabilities.
Drawn = tuple[list[list[int]], list[list[float]] | None]

# Maximum mean difference between a merged copy and the policy, in nats per token. In fp32 it is about 1e-6. In bf16,
# weights round by up to 0.4 %; 0.01 to 0.02 between vLLM and trainers are reported as harmless. Beyond the bound, a
# copy is kept if its error is at most √2 times the policy's own: a deep bf16 model scored in one batch differs by 0.03
# to 0.05 from its token-by-token values.
MERGED_BOUND = 0.05
MORE_THAN_POLICY = 1.5
NEVER_RECORDED = Choice(False)
KEPT_SHARE = 0.9  # of the memory that a process can use, filled in the largest step
# Settings that the compact loop supports. Others need another loop, or state per row besides the cache.
PLAIN_SETTINGS = {
    "encoder_repetition_penalty": (None, 1),
    "guidance_scale": (None, 1),
    "num_return_sequences": (None, 1),
    "use_cache": (None, 1),
    "encoder_no_repeat_ngram_size": (None, 0),
    "token_healing": (None, 0),
    "prefill_chunk_size": (None,),
    "watermarking_config": (None,),
    "cache_implementation": (None, "dynamic"),
}


def settings_obstacle(config: GenerationConfig, own: GenerationConfig | None) -> str | None:
    """Return why these settings, completed by the model's own, rule out compact generation."""
    if own is not None:
        config = copy.deepcopy(config)
        config.update(**kept_defaults(own).to_dict(), defaults_only=True, allow_custom_entries=True)
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        return f"the generation settings use {mode.value.replace('_', ' ')}, in which rows depend on each other."
    for key, plain in PLAIN_SETTINGS.items():
        value = getattr(config, key, None)
        if value not in plain:
            return f"{key}={value!r} needs the generation loop of transformers."
    return None


def slice_rows(copies: Sequence[int], most: int | None) -> list[list[int]]:
    """
    Divide completions (`copies`: prompt indices) into slices of at most `most` rows; those of a prompt stay together
    if possible.
    """
    if most is None or most >= len(copies):
        return [list(range(len(copies)))]
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(copies):
        groups.setdefault(prompt, []).append(row)
    slices: list[list[int]] = [[]]
    for group in groups.values():
        if len(slices[-1]) + len(group) > most and slices[-1]:
            slices.append([])
        for row in group:
            if len(slices[-1]) == most:
                slices.append([])
            slices[-1].append(row)
    return slices


def sample_at_once(
    model,
    prompts: list[list[int]],
    config: GenerationConfig,
    multiple: int | None,
    logps_at: float | None,
    recordings: Recordings | None,
) -> Drawn:
    different, copies = find_distinct(prompts)
    device = next(model.parameters()).device
    ids, mask = pad_left(different, config.pad_token_id, multiple)
    drawn = model.generate(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        copies=torch.tensor(copies, device=device),
        logps_at=logps_at,
        recordings=recordings,
        generation_config=config,
        custom_generate=compact_sample,
    )
    logps = None if drawn.logps is None else drawn.logps.tolist()
    return drawn.ids[:, ids.shape[1] :].tolist(), logps


class CompactGeneration(Part):
    """
    Samples completions, from a merged copy of the policy if possible.

    CUDA graphs, and the cache and merged weights that they read, stay in memory for the next generation if the largest
    step leaves room for them.

    A copy that rounds is measured in every step. If it is too far from the policy, the policy samples one generation
    to measure its own rounding, which decides whether the copy is used again.

    Args:
        temperature (`float`): Temperature of log-probabilities.
        autocasts (`bool`): Whether scoring uses a lower precision than the policy's weights.
        max_rows (`int`, *optional*): Maximum completions decoded at once.
        replays (`Choice`): Whether the step of a token is recorded as a CUDA graph.
        keeps (`bool`): Whether graphs may stay in memory for the next generation.

    Attributes:
        merged (`Choice`): Whether the copy is sampled, or why not.
        measures (`bool`): Whether the last log-probabilities measure the copy, and are not of a rollout function's own
            sampler.
    """

    def __init__(
        self,
        policy: torch.nn.Module,
        temperature: float,
        autocasts: bool = False,
        max_rows: int | None = None,
        replays: Choice = NEVER_RECORDED,
        keeps: bool = True,
    ):
        reason = merge_obstacle(policy)
        self._max_rows = max_rows
        self.merged = Choice.unless(reason)
        self.replayed = replays
        self._recordings = Recordings() if replays.on else None
        self._may_keep = keeps
        self._held = 0  # bytes that stay until the next generation
        self._peak: float | None = None  # bytes of the largest step, without those
        self._mergeable = policy if reason is None else None
        self.measures = False
        # In fp32 a copy differs only by the order of additions: nothing to measure.
        rounds = any(param.dtype != torch.float32 for param in policy.parameters() if param.is_floating_point())
        self._measured_at = temperature if rounds or autocasts else None
        self.copy: MergedCopy | None = None
        self.begin()

    def facts(self) -> dict[str, str | int]:
        """Return entries of `env.json`."""
        size = self.copy.bytes if self.copy is not None else 0
        return {"merged_copy": str(self.merged), "merged_copy_bytes": size, "cuda_graph": str(self.replayed)}

    @torch.no_grad()
    def sample(
        self,
        model,
        prompts: list[list[int]],
        config: GenerationConfig,
        ends: list[int],
        multiple: int | None = None,
        logps_at: float | None = None,
    ) -> Drawn:
        """
        Sample one completion of each prompt (token ids); a slice computes equal prompts once.

        Args:
            ends (`list[int]`): Tokens that end a completion and are part of it.
            multiple (`int`, *optional*): Pad prompts to a multiple of it.
            logps_at (`float`, *optional*): Temperature of the log-probabilities, returned whether needed or not.

        Returns the completions' token ids, and their log-probabilities under the merged copy if its rounding differs
        from the policy's; `measures` says whether that is so.
        """
        completions: list[list[int]] = [[] for _ in prompts]
        logps: list[list[float]] = [[] for _ in prompts]
        measured_at = None if self.copy is None else self._measured_at
        self.measures = measured_at is not None
        logps_at = measured_at if logps_at is None else logps_at
        if model.training:  # an evaluation may come within a batch
            self._by_policy = self._of_copy is not None
        if self.copy is not None and self._of_copy is None:
            self.copy.refresh()
            self.copy.model.generation_config = model.generation_config
            self.copy.model.train(model.training)
            model = self.copy.model
        self._held = 0
        try:
            with contiguous_states(model):
                for rows in slice_rows(find_distinct(prompts)[1], self._max_rows):
                    written, written_logps = sample_at_once(
                        model, [prompts[row] for row in rows], config, multiple, logps_at, self._recordings
                    )
                    for place, row in enumerate(rows):
                        completions[row] = cut_at_end(written[place], set(ends))
                        if written_logps is not None:
                            logps[row] = written_logps[place][: len(completions[row])]
            if self._recordings is not None and not self._recordings.bytes:
                self._recordings = None
                self.replayed = Choice(False, "the cache of this model cannot be recorded")
                logger.warning("No CUDA graph: %s.", self.replayed.reason)
            self._held = self._bytes_to_keep(next(model.parameters()).device)
        finally:
            if not self._held:
                self.release()
        return completions, None if logps_at is None else logps

    def _bytes_to_keep(self, device: torch.device) -> int:
        """Return the bytes of graphs, cache and merged weights if they may stay for the next generation, else 0."""
        if self._recordings is None or not (self._may_keep and self._recordings.lasts) or self._peak is None:
            return 0
        held = self._recordings.bytes + (0 if self.copy is None else self.copy.bytes)
        return held if self._peak + held <= KEPT_SHARE * usable_bytes(device) else 0

    def release(self) -> None:
        """Free what is kept for the next generation."""
        self._held = 0
        if self._recordings is not None:
            self._recordings.clear()
        if self.copy is not None:
            self.copy.release()

    def take_logps(self, batch: dict[str, Any]) -> torch.Tensor | None:
        """Take the sampler's log-probabilities `(B, T)` from a batch; `None` if they do not measure the copy."""
        if not self.measures:  # a rollout function's remain for TRL
            return None
        return batch.pop("sampling_per_token_logps", None)

    def on_row(self, step: int, row: Row) -> Event | None:
        """Note the memory of a step. Sample from the policy if `mean_abs_dlogp_sampler` is too large for the copy."""
        if "peak_memory_gib" in row:
            self._peak = max(self._peak or 0.0, row["peak_memory_gib"] * 2**30 - self._held)
        difference = row.get("mean_abs_dlogp_sampler")
        if self.copy is None or difference is None:
            return None
        if self._of_copy is None:
            if difference > self._bound:
                self._of_copy = difference
            return None
        if not self._by_policy:  # a later step of the batch that the copy has sampled
            return None
        of_copy = self._of_copy
        self._of_copy = None
        self._bound = max(MERGED_BOUND, MORE_THAN_POLICY * difference)
        if of_copy <= self._bound:
            return None
        self._unmerge(
            f"the merged copy differs from the policy by {of_copy:.2g} nats per token, more than rounding explains "
            f"({difference:.2g})"
        )
        return make_event(UNMERGED, step, step, "copy_off_policy", of_copy, self._bound)

    def _unmerge(self, reason: str) -> None:
        self.release()
        self.copy = None
        self.merged = Choice(False, reason)

    # ------------------------------------------------------------------------------- as a part, see parts.py

    def begin(self) -> None:
        self._of_copy: float | None = None  # while the policy is sampled for comparison
        self._by_policy = False  # whether it has sampled the current batch for that
        self._bound = MERGED_BOUND
        if self.copy is None and self._mergeable is not None:
            self.copy = MergedCopy(self._mergeable)
            self.merged = Choice(True)

    def state_dict(self) -> dict[str, Any]:
        return {
            "merged": str(self.merged),
            "measures": self.measures,
            "of_copy": self._of_copy,
            "by_policy": self._by_policy,
            "bound": self._bound,
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.measures = state["measures"]
        self._of_copy = state["of_copy"]
        self._by_policy = state.get("by_policy", False)
        self._bound = state["bound"]
        merged = Choice.parse(state["merged"])
        if self.copy is not None and not merged.on:
            self._unmerge(merged.reason)
