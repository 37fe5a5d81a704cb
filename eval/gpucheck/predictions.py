"""
What a step takes at least on a card that has not been measured, from counts and from published numbers alone.

A stage (a token of all rows, a forward, a micro-batch) takes at least the longest of three times:

    launches × 6 µs        what the host needs to ask for its kernels, one after another
    bytes ÷ bandwidth      weights, cache and logits, read from the card's memory and written to it
    FLOP ÷ peak            the multiplications and additions of its matrix products

Launches and waits are those that the tests count on a pretended device, at two depths of a tiny model: a line through
both gives any depth. Pure functions: numbers in, numbers out.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trl_prorl.eval.gpucheck.cards import Card
from trl_prorl.eval.gpucheck.counts import Counts, Line
from trl_prorl.eval.readiness.memory import GIB, GenerationMemory
from trl_prorl.eval.stepcost.settings import SHAPES


LAUNCH_SECONDS = 6e-6  # assumed: PyTorch asks for some 150,000 small kernels a second


# ------------------------------------------------------------------------------------------------ a model and its work


@dataclass(frozen=True)
class Shape:
    """Holds the widths of a Qwen2 with a LoRA of this rank around all its linear layers."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int
    rank: int = 16

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def matrices_of_layer(self) -> tuple[tuple[int, int], ...]:
        """Widths of the inputs and outputs of a layer's seven matrices."""
        queries = self.heads * self.head_size
        keys = self.key_value_heads * self.head_size
        attention = ((self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden))
        return (*attention, *[(self.hidden, self.intermediate)] * 2, (self.intermediate, self.hidden))

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.matrices_of_layer)

    @property
    def head_weights(self) -> int:
        """Weights of the LM head, which are those of the embedding."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All of the model: with the biases of queries, keys and values, and the norms."""
        biases = (self.heads + 2 * self.key_value_heads) * self.head_size
        norms = 2 * self.hidden
        return self.layer_weights + self.head_weights + self.layers * (biases + norms) + self.hidden

    @property
    def adapter_weights(self) -> int:
        """Weights of one LoRA."""
        return self.layers * self.rank * sum(inputs + outputs for inputs, outputs in self.matrices_of_layer)

    def cache_bytes(self, of_number: int) -> int:
        """Bytes of the keys and values of a token, in all layers."""
        return 2 * self.layers * self.key_value_heads * self.head_size * of_number

    def attention_flops(self, pairs: float) -> float:
        """FLOP of all layers for so many pairs of a query and a key: a product for the score, and one for the sum."""
        return 4 * self.layers * self.heads * self.head_size * pairs


QWEN = Shape(*SHAPES["qwen2.5-1.5b"])


@dataclass(frozen=True)
class Work:
    """Holds the size of a step. Every completion has `completion_tokens`: none ends early, and nothing is padded."""

    title: str
    prompts: int
    completions: int
    micro_batch: int
    prompt_tokens: int = 100
    completion_tokens: int = 512
    iterations: int = 2  # steps that use a batch

    @property
    def rows(self) -> int:
        return self.prompts * self.completions

    @property
    def micro_batches(self) -> int:
        return self.rows // self.micro_batch


RECIPE = Work("16 prompts × 8 completions of 512 tokens, micro-batches of 8", prompts=16, completions=8, micro_batch=8)
LARGE = Work(
    "8 prompts × 64 completions of 512 tokens, micro-batches of 64", prompts=8, completions=64, micro_batch=64
)


class Forward(NamedTuple):
    """What a forward of a micro-batch computes: tokens, pairs of a query and a key, and tokens that are scored."""

    tokens: int
    pairs: int
    scored: int


def padded_forward(work: Work) -> Forward:
    """A row has its prompt and its completion, and each token sees those before it and itself."""
    length = work.prompt_tokens + work.completion_tokens
    pairs = length * (length + 1) // 2
    rows = work.micro_batch
    return Forward(rows * length, rows * pairs, rows * work.completion_tokens)


def packed_forward(work: Work) -> Forward:
    """A prompt stands once, less its last token, which every completion begins with."""
    rows = work.micro_batch
    prompts = -(-rows // work.completions)
    before = work.prompt_tokens - 1
    own = work.completion_tokens + 1
    pairs = prompts * (before * (before + 1) // 2) + rows * (own * before + own * (own + 1) // 2)
    return Forward(prompts * before + rows * own, pairs, rows * work.completion_tokens)


def forward_flops(shape: Shape, forward: Forward, is_merged: bool = False) -> float:
    """
    Return the FLOP of a forward. A token costs two for each weight of the layers, and of an adapter that is not
    merged; a token that is scored also costs two for each weight of the head.
    """
    weights = shape.layer_weights
    if not is_merged:
        weights += shape.adapter_weights
    return (
        2 * weights * forward.tokens + shape.attention_flops(forward.pairs) + 2 * shape.head_weights * forward.scored
    )


def update_flops(shape: Shape, forward: Forward) -> float:
    """
    Return the FLOP of a forward, of the layers' forward once more, since it was not kept, and of a backward. Frozen
    weights have no gradient, so the layers' backward costs as much as their forward; the adapter's costs twice as
    much, and so does attention's. The head computes its logits once more, and the gradient of its states.
    """
    layers_again = forward_flops(shape, forward._replace(scored=0))
    of_layers = 2 * (shape.layer_weights + 2 * shape.adapter_weights) * forward.tokens
    of_head = 4 * shape.head_weights * forward.scored
    return (
        forward_flops(shape, forward) + layers_again + of_layers + 2 * shape.attention_flops(forward.pairs) + of_head
    )


# -------------------------------------------------------------------------------------------------------- a prediction


class Bound(NamedTuple):
    """The least seconds of a stage, and what they are of: `launches`, `bandwidth` or `compute`."""

    seconds: float
    limit: str


def bound(launches: float, size: float, flops: float, bandwidth: float, peak: float) -> Bound:
    """Return the longest of three times: of so many launches, bytes (bytes/s), and FLOP (FLOP/s)."""
    times = {"launches": launches * LAUNCH_SECONDS, "bandwidth": size / bandwidth, "compute": flops / peak}
    limit = max(times, key=times.get)
    return Bound(times[limit], limit)


@dataclass(frozen=True)
class Prediction:
    """What a step of an arm takes at least on a card. Seconds; memory in GiB."""

    card: Card
    shape: Shape
    work: Work
    counts: Counts

    def _bound(self, launches: Line, size: float, flops: float, peak: float | None = None) -> Bound:
        at_depth = launches.at(self.shape.layers)
        return bound(at_depth, size, flops, self.card.bandwidth, peak or self.card.peak)

    @property
    def _is_ours(self) -> bool:
        return self.counts.arm.is_ours

    @property
    def _weights(self) -> float:
        """Bytes of the model's weights."""
        return self.shape.parameters * self.card.weight_bytes

    @cached_property
    def forward(self) -> Forward:
        """A forward of a micro-batch."""
        return packed_forward(self.work) if self._is_ours else padded_forward(self.work)

    @cached_property
    def prefill(self) -> Bound:
        """The prompts before the first token, and all else that a batch asks once."""
        rows = self.work.prompts if self._is_ours else self.work.rows
        length = self.work.prompt_tokens
        computed = Forward(rows * length, rows * length * (length + 1) // 2, rows)
        flops = forward_flops(self.shape, computed, is_merged=self._is_ours)
        return self._bound(self.counts.batch("launches"), self._weights, flops, self.card.sampling_peak)

    @cached_property
    def token(self) -> Bound:
        """A token of all rows, when half of the completion is written."""
        shape = self.shape
        rows = self.work.rows
        length = self.work.prompt_tokens + self.work.completion_tokens / 2
        size = self._weights
        size += rows * length * shape.cache_bytes(self.card.weight_bytes) * self.counts.cache_passes
        size += rows * shape.vocabulary * self.counts.logit_bytes
        weights = shape.layer_weights + shape.head_weights
        if not self._is_ours:  # the adapter is not merged
            weights += shape.adapter_weights
            size += shape.adapter_weights * 4
        flops = rows * (2 * weights + shape.attention_flops(length))
        return self._bound(self.counts.token("launches"), size, flops, self.card.sampling_peak)

    @cached_property
    def scorings(self) -> list[Bound]:
        """A forward of each kind with which a batch is scored."""
        flops = forward_flops(self.shape, self.forward)
        return [self._bound(launches, self._weights, flops) for launches in self.counts.scorings("launches")]

    @cached_property
    def micro_batch(self) -> Bound:
        """Forward, the layers' forward once more, and backward; each reads all weights."""
        flops = update_flops(self.shape, self.forward)
        return self._bound(self.counts.micro_batch("launches"), 3 * self._weights, flops)

    @cached_property
    def optimizer(self) -> Bound:
        """AdamW reads weight, gradient and two moments of the adapter, and writes all but the gradient, in fp32."""
        return self._bound(self.counts.step("launches"), 28 * self.shape.adapter_weights, 0.0)

    @cached_property
    def stages(self) -> dict[str, list[tuple[float, Bound]]]:
        """The stages of a step: how often each occurs in it, and its bound."""
        work = self.work
        share = 1 / work.iterations  # of a batch
        return {
            "generation": [(share, self.prefill), (share * (work.completion_tokens - 1), self.token)],
            "scoring": [(share * work.micro_batches, forward) for forward in self.scorings],
            "update": [(work.micro_batches, self.micro_batch), (1, self.optimizer)],
        }

    def seconds(self, stage: str) -> float:
        """Seconds of a stage in an optimizer step; of a batch that several steps share, the step's share."""
        return sum(times * part.seconds for times, part in self.stages[stage])

    @property
    def generation(self) -> float:
        """Seconds of a generation batch."""
        return self.work.iterations * self.seconds("generation")

    @property
    def step(self) -> float:
        """Seconds of an optimizer step."""
        return sum(self.seconds(stage) for stage in self.stages)

    @property
    def launch_share(self) -> float:
        """Share of those seconds in stages whose launches take longest."""
        parts = [pair for stage in self.stages.values() for pair in stage]
        return sum(times * part.seconds for times, part in parts if part.limit == "launches") / self.step

    @property
    def waits(self) -> float:
        """How often the host waits in a step."""
        counts = self.counts
        layers = self.shape.layers
        work = self.work
        of_batch = counts.batch("waits").at(layers) + (work.completion_tokens - 1) * counts.token_waits()
        of_batch += work.micro_batches * sum(line.at(layers) for line in counts.scorings("waits"))
        of_step = work.micro_batches * counts.micro_batch("waits").at(layers) + counts.step("waits").at(layers)
        return of_batch / work.iterations + of_step

    @property
    def _adapter(self) -> int:
        """Bytes of one adapter, in fp32."""
        return 4 * self.shape.adapter_weights

    @property
    def held_at_first(self) -> float:
        """GiB before the first update: weights and adapters."""
        adapters = 2 if self.counts.arm.has_reference else 1
        return (self._weights + adapters * self._adapter) / GIB

    @property
    def held(self) -> float:
        """GiB between the steps: also the two moments of the adapter. Its gradients are freed after an update."""
        return self.held_at_first + 2 * self._adapter / GIB

    @property
    def generation_memory(self) -> float:
        """
        GiB at the last token before the first update, all rows at once: also what the preflight counts of a generation
        batch.
        """
        shape = self.shape
        of_number = self.card.weight_bytes
        batch = GenerationMemory(
            cache=shape.cache_bytes(of_number),
            logits=shape.vocabulary * (of_number + 4 + 4),  # scores and probabilities in fp32
            tokens=self.work.prompt_tokens + self.work.completion_tokens,
            copy=shape.layer_weights * of_number if self._is_ours else 0,
        )
        return self.held_at_first + batch.needed(self.work.rows) / GIB

    @property
    def update_memory(self) -> float:
        """
        GiB in the backward of a layer: also the adapter's gradients, the states between the layers, and what the layer
        computes once more, of which four tensors are as wide as the MLP and six as the model.
        """
        shape = self.shape
        of_token = 2 * (shape.layers * shape.hidden + 4 * shape.intermediate + 6 * shape.hidden)
        return self.held + (self._adapter + self.forward.tokens * of_token) / GIB

    @property
    def memory(self) -> float:
        """GiB of a step, once there was an update."""
        moments = self.held - self.held_at_first
        return max(self.generation_memory + moments, self.update_memory)
