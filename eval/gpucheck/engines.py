"""Ways to sample completions whose lengths are given: each takes the same prompts and makes as many tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from peft import PeftModel
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.utils import WorkloadHints

from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.stepcost.generating import ForcedEnds
from trl_prorl.rollout.compact import compact_sample, distinct, padded_left, until_end
from trl_prorl.rollout.merged_copy import MergedCopy


BUCKET = 128  # tokens: prompts and completions of a static cache are rounded up to multiples, so that few shapes occur


@dataclass
class Bench:
    """
    Attributes:
        policy ([`~peft.PeftModel`]): With its adapter.
        copy ([`MergedCopy`]): Of it.
        size ([`Size`]): Whose device is used.
        pad (`int`), end (`int`): Token ids.
    """

    policy: PeftModel
    copy: MergedCopy
    size: Size
    pad: int
    end: int

    def settings(self, longest: int, **further) -> GenerationConfig:
        """Plain sampling, as TRL's defaults have it."""
        plain = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        ids = {"pad_token_id": self.pad, "eos_token_id": self.end}
        return GenerationConfig(max_new_tokens=longest, **plain, **ids, **further)


class Engine(NamedTuple):
    """
    Attributes:
        sample (`Callable`):
            From a bench, prompts, lengths and the greatest length for which there shall be room to the lengths that
            came out.
        needs (`tuple[str, ...]`): Without which it is skipped.
    """

    sample: Callable[[Bench, list[list[int]], list[int], int], list[int]]
    needs: tuple[str, ...] = ()


def by_generate(
    bench: Bench, prompts: list, lengths: list, longest: int, merged: bool, static: bool = False, graphs: bool = False
) -> list[int]:
    """Transformers' loop with a growing cache or a static one, whose decoding steps may become CUDA graphs."""
    model = bench.copy.model if merged else bench.policy
    ids, mask = (part.to(bench.size.device) for part in padded_left(prompts, bench.pad, BUCKET if static else None))
    config = bench.settings(-(-longest // BUCKET) * BUCKET if static else longest, disable_compile=not graphs)
    if static:
        config.cache_implementation = "static"
    made = model.generate(
        input_ids=ids, attention_mask=mask, generation_config=config, logits_processor=_ends(bench, lengths, ids)
    )
    return [len(until_end(row, {bench.end})) for row in made[:, ids.shape[1] :].tolist()]


def compactly(bench: Bench, prompts: list, lengths: list, longest: int, merged: bool) -> list[int]:
    """Our loop: a prompt once for its completions, and none that has ended."""
    model = bench.copy.model if merged else bench.policy
    different, copies = distinct(prompts)
    ids, mask = (part.to(bench.size.device) for part in padded_left(different, bench.pad))
    drawn = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=bench.settings(longest),
        logits_processor=_ends(bench, lengths, ids),
        custom_generate=compact_sample,
        copies=torch.tensor(copies, device=bench.size.device),
    )
    return [len(until_end(row, {bench.end})) for row in drawn.ids[:, ids.shape[1] :].tolist()]


def continuously(bench: Bench, prompts: list, lengths: list, longest: int) -> list[int]:
    """
    Transformers' continuous batching of the policy, as TRL's `use_transformers_continuous_batching` does, with a
    manager that begins anew in every generation. `generate_batch`, which TRL calls, has one length for all requests.
    """
    model, done = bench.policy.get_base_model(), {}
    hints = WorkloadHints(max(map(len, prompts)), longest, len(prompts))
    with model.continuous_batching_context_manager(
        generation_config=bench.settings(longest), block=True, timeout=5, workload_hints=hints
    ) as manager:
        names = [
            manager.add_request(ids, max_new_tokens=length, eos_token_id=-1)
            for ids, length in zip(prompts, lengths, strict=True)
        ]
        while len(done) < len(names):
            result = manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                done[result.request_id] = len(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("continuous batching came to an end before its requests did")
    return [done[name] for name in names]


def _ends(bench: Bench, lengths: list[int], ids: torch.Tensor) -> LogitsProcessorList:
    return LogitsProcessorList([ForcedEnds(lengths, ids.shape[1], bench.end, torch.device(bench.size.device))])


NOW = "compact, merged (as now)"
ENGINES = {
    "generate": Engine(partial(by_generate, merged=False)),
    "generate, merged": Engine(partial(by_generate, merged=True)),
    "compact": Engine(partial(compactly, merged=False)),
    NOW: Engine(partial(compactly, merged=True)),
    "static cache in buckets, merged": Engine(partial(by_generate, merged=True, static=True)),
    "CUDA graphs, static cache, merged": Engine(
        partial(by_generate, merged=True, static=True, graphs=True), ("cuda", "triton")
    ),
    "continuous batching": Engine(continuously, ("cuda",)),
}
