"""
The policy's adapter as a LoRA request to vLLM (docs.vllm.ai, "LoRA adapters"), in place of weights into which it is
merged: the base stays what vLLM loaded, and two small factors are handed over instead of all weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory

from peft import PeftModel
from trl.generation import vllm_generation


RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM can keep room


@contextmanager
def let_engine_take_adapters(rank: int) -> Iterator[None]:
    """Make TRL's engine, which it makes in this context, take an adapter of up to this rank."""
    engine = vllm_generation.LLM
    room = min(size for size in RANKS if size >= rank)
    vllm_generation.LLM = partial(engine, enable_lora=True, max_lora_rank=room, max_loras=1)
    try:
        yield
    finally:
        vllm_generation.LLM = engine


def hand_over_adapters(generation: vllm_generation.VLLMGeneration, policy: PeftModel) -> None:
    """Let TRL's engine sample from its own base with the policy's adapter, as it is at each hand-over."""
    from vllm.lora.request import LoRARequest

    folder = TemporaryDirectory()
    numbers = count(1)
    generate = generation.llm.generate

    def sync_weights() -> None:
        policy.save_pretrained(folder.name, selected_adapters=["default"], save_embedding_layers=False)
        request = LoRARequest("policy", next(numbers), folder.name)  # a number that vLLM knows is not loaded again
        generation.llm.generate = partial(generate, lora_request=request)
        generation.llm.reset_prefix_cache()

    generation.sync_weights = sync_weights
