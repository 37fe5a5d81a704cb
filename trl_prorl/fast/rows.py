"""The rows of a batch while they are decoded: how a token is chosen, and when a row ends."""

import copy

import torch
from torch.nn.functional import pad
from transformers import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, TemperatureLogitsWarper

from .batch_cache import Selection
from .recording import Take


class TokenChoice:
    """
    How tokens are chosen from logits, and when a row ends.

    Attributes:
        is_plain (`bool`): Whether it needs only logits, a temperature and `ends`.
        settings (`tuple`): The numbers in a recording of it.
        pad_token (`int`, *optional*): The token after the end of a row.
        ends (`torch.LongTensor`, *optional*): The tokens that end a row, if only these and the length do.
    """

    def __init__(
        self, processors: LogitsProcessorList, criteria, config, logps_at: float | None, device: torch.device
    ):
        self.processors = processors
        self.samples = config.do_sample
        self.logps_at = logps_at
        self.temperature = _temperature_alone(processors)
        pad_token = config._pad_token_tensor
        self.pad_token = None if pad_token is None else int(pad_token)
        self._criteria = criteria
        ends = _end_tokens(criteria)
        self.ends = None if ends is None else torch.tensor(ends, dtype=torch.long, device=device)
        # Without deterministic algorithms for cumulative sums a draw waits for the device.
        on_device = not torch.are_deterministic_algorithms_enabled()
        self.is_plain = self.temperature is not None and ends is not None and on_device
        self.settings = (self.is_plain, self.samples, logps_at, self.temperature, self.pad_token, ends and tuple(ends))

    def of_rows(self, rows: torch.Tensor) -> "TokenChoice":
        selected = copy.copy(self)
        selected.processors = _of_rows(self.processors, rows)
        return selected

    def tokens(
        self, written: torch.Tensor, logits: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """
        Return token ids, log-probabilities at `logps_at`, and for a draw whether a row has a distribution, each
        `(R,)`, from logits `(R, V)`.
        """
        if self.temperature is None:
            # A processor may write into its argument.
            scores = self.processors(written, logits.to(torch.float32, copy=self.logps_at is not None))
        else:
            scores = _scaled(logits, self.temperature)
        has_distribution = None
        if self.samples:
            probabilities = scores.softmax(dim=-1)
            tokens, has_distribution = draw(probabilities, numbers)
        else:
            tokens = scores.argmax(dim=-1)
        if self.logps_at is None:
            return tokens, None, has_distribution
        if self.samples and self.temperature == self.logps_at:  # a drawn token has a positive probability
            logps = probabilities.gather(1, tokens[:, None]).log()
        else:
            logps = _scaled(logits, self.logps_at).log_softmax(dim=-1).gather(1, tokens[:, None])
        return tokens, logps[:, 0], has_distribution

    def goes_on(self, tokens: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        """Return whether rows go on after their last token `(R,)`; `None` if all do."""
        if self.ends is None:
            return ~self._criteria(written, None)
        if len(self.ends) == 0:
            return None
        if len(self.ends) == 1:
            return tokens != self.ends
        return (tokens[:, None] != self.ends).all(dim=1)


def _temperature_alone(processors: LogitsProcessorList) -> float | None:
    if not processors:
        return 1.0
    if len(processors) == 1 and type(processors[0]) is TemperatureLogitsWarper:
        return processors[0].temperature
    return None


def _end_tokens(criteria) -> list[int] | None:
    ends = []
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            ends += criterion.eos_token_id.tolist()
        elif type(criterion) is not MaxLengthCriteria:
            return None
    return ends


class Rows:
    """
    The decoded rows, in an order that changes; the first `number` are wanted.

    Attributes:
        ids, logps (`torch.Tensor` of shape `(R, L)`): Tokens and their log-probabilities.
        length (`int`): Tokens written.
        place (`torch.LongTensor` of shape `(1,)`): Place of the last token.
        alive, sound (`torch.BoolTensor` of shape `(R,)`): Whether a row is unfinished, and whether all its
            distributions were valid.
        lengths (`torch.LongTensor` of shape `(R,)`): Tokens of a row.
        numbers (`torch.Tensor` of shape `(R, 1)`): Random numbers from 0 to 1 for the next tokens.
    """

    def __init__(self, take: Take, prompts: torch.Tensor, number: int, choice: TokenChoice):
        width = prompts.shape[1]
        self.choice = choice
        if choice.ends is not None:
            choice.ends = take("ends", choice.ends.shape, torch.long).copy_(choice.ends)
        self.ids = take("ids", ("rows", "length"), torch.long)
        self.ids[:, :width] = prompts
        self.logps = None
        if choice.logps_at is not None:
            self.logps = take("logps", ("rows", "length"), torch.float32)
        self.place = take("place", (1,), torch.long).fill_(width - 1)
        self.alive = take("alive", ("rows",), torch.bool)
        self.alive[:number] = True
        self.sound = take("sound", ("rows",), torch.bool).fill_(True)
        self.lengths = take("lengths", ("rows",), torch.long).fill_(width)
        self.numbers = take("numbers", ("rows", 1), torch.float64)
        self.length = width
        self.index = list(range(len(prompts)))  # of each row among the rows at first
        self.draw_numbers()

    def draw_numbers(self) -> None:
        if self.choice.samples:
            self.numbers.uniform_()

    def write(self, logits: torch.Tensor) -> None:
        written = self.ids[:, : self.length]
        tokens, logps, has_distribution = self.choice.tokens(written, logits, self.numbers)
        done = ~self.alive
        if has_distribution is not None:
            self.sound &= has_distribution | done
        if self.choice.pad_token is not None:
            tokens.masked_fill_(done, self.choice.pad_token)
        self.place += 1
        self.ids.index_copy_(1, self.place, tokens[:, None])
        if logps is not None:
            self.logps.index_copy_(1, self.place, logps.masked_fill_(done, 0.0)[:, None])
        self.lengths += self.alive
        goes_on = self.choice.goes_on(tokens, self.ids[:, : self.length + 1])
        if goes_on is not None:
            self.alive &= goes_on

    def copy_to(self, ids: torch.Tensor, logps: torch.Tensor | None) -> None:
        """Copy the written tokens in the first order."""
        index = torch.tensor(self.index, device=ids.device)
        ids[index, : self.length] = self.ids[:, : self.length]
        if logps is not None:
            logps[index, : self.length] = self.logps[:, : self.length]

    def close_up(self, selection: Selection) -> None:
        self.choice = self.choice.of_rows(selection.rows)
        self.index = [self.index[row] for row in selection.kept]
        for name in ("ids", "logps", "alive", "sound", "lengths", "numbers"):
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, selection.close_up(tensor))


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide logits by a temperature, in fp32; an fp32 divisor needs only one pass."""
    if temperature == 1.0:
        return logits.float()
    return logits / logits.new_full((1,), temperature, dtype=torch.float32)


def _of_rows(processors: LogitsProcessorList, rows: torch.Tensor) -> LogitsProcessorList:
    """A repetition penalty stores each row's padding."""
    selected = LogitsProcessorList()
    for processor in processors:
        padding = getattr(processor, "prompt_ignore_length", None)
        if isinstance(padding, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = padding[rows]
        selected.append(processor)
    return selected


BLOCK = 128  # tokens per block; 64 to 512 cost about the same for a vocabulary of 8,192
SHORT_OF_ALL = 1.0 - 1e-12  # keeps a rounded sum before the end of the last token


def draw(probabilities: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Sample a token per row by inverting its cumulative distribution, first over blocks of tokens and then within one.

    (`torch.multinomial` draws a random number per token of the vocabulary: 40 times as long on a CPU for 16 rows of
    8,192.) Sums in double precision are exact up to the rounding of `probabilities` `(R, V)`, which need not sum to 1;
    a token of probability 0 is never drawn. `numbers` `(R, 1)` are uniform between 0 and 1, in double precision.
    Returns token ids `(R,)`, and whether a row has a distribution `(R,)`; if not, the caller must raise an error (a
    check here would synchronize).
    """
    rows, size = probabilities.shape
    missing = -size % BLOCK
    whole = pad(probabilities, (0, missing)) if missing else probabilities  # padding by nothing would copy, too
    blocks = whole.view(rows, -1, BLOCK)
    ends = _running_sums(blocks.sum(dim=-1, dtype=torch.float64))
    total = ends[:, -1:]
    has_distribution = (total > 0.0) & (total < torch.inf)
    wanted = numbers.clamp(max=SHORT_OF_ALL) * total
    block = torch.searchsorted(ends, wanted, right=True).clamp_(max=ends.shape[1] - 1)  # beyond: no distribution
    before = pad(ends, (1, 0)).gather(1, block)
    within = _running_sums(blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double())
    wanted = (wanted - before).minimum(within[:, -1:] * SHORT_OF_ALL)
    token = torch.add(torch.searchsorted(within, wanted, right=True), block, alpha=BLOCK)
    return token[:, 0].clamp_(max=size - 1), has_distribution[:, 0]


def _running_sums(values: torch.Tensor) -> torch.Tensor:
    """Sum along each row, on the CPU under `full_determinism`: torch rejects a GPU's cumulative sums."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)
