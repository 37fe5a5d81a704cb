"""vLLM, if it is installed: the merged weights, offline, in a process that gives its memory back when it ends."""

import json
import time
from pathlib import Path


MEMORY = 0.4  # share of the GPU that it may take


def sample_with_vllm(model: str, batches: list[tuple[list[list[int]], list[int]]], out: str) -> None:
    """
    Seconds for every batch, written to a file; the first warms up.

    Args:
        model (`str`): A folder with weights and a configuration.
        batches (`list`): Prompts and lengths.
        out (`str`): The file.
    """
    from vllm import LLM, SamplingParams

    longest = max(len(prompt) + length for given in batches for prompt, length in zip(*given, strict=True))
    engine = LLM(
        model=model, skip_tokenizer_init=True, gpu_memory_utilization=MEMORY, max_model_len=longest + 1, seed=0
    )
    seconds = []
    for prompts, lengths in batches:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        settings = [
            SamplingParams(max_tokens=length, ignore_eos=True, temperature=1.0, detokenize=False) for length in lengths
        ]
        began = time.perf_counter()
        made = engine.generate(given, settings, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        if [len(one.outputs[0].token_ids) for one in made] != lengths:
            raise RuntimeError("the completions are not as long as they were asked for")
    Path(out).write_text(json.dumps(seconds) + "\n")
