"""
Two comparisons at the first batch of a run. They decide once, for all processes and resumes.

- **A row's score.** The policy is trained by the log-probabilities of its own plain forward: TRL's head does all that
  the model's does, padding does not count, packed rows are the padded ones, and nothing is random in training mode.
- **A prompt's samples.** Compact generation draws completions with the log-probabilities of that forward.

An acceleration that is off by more than rounding is switched off under `auto`, and an error under `on`. Policy and
random states stay the same.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel

from ..cli.dropout import evaluation_mode, own_random_state, training_mode
from ..errors import InputError
from ..parts import Part
from ..run.folder import first_of_processes
from ..supported import LEARNED_POSITIONS, PAGE
from ..upstream.modules import checkpointing_off
from ..upstream.positions import with_positions
from .acceleration import Acceleration
from .generation import Drawn
from .own_forward import allowed, mean_difference, mixed_dtype, own_logps, plain_model, rows_padded_right


logger = logging.getLogger(__name__)

LONGEST = 64  # tokens of a completion that are compared
ROWS = 4  # completions of a prompt
PADDING = 5  # tokens on the left of a row, as in a batch with a longer prompt

Draw = Callable[[float | None], Drawn]


class FirstBatch(Part):
    """
    Makes the comparisons, and switches off what they find.

    Args:
        args ([`ProRLConfig`]): The configuration.
        accelerator ([`~accelerate.Accelerator`]): The run's.
        policy (`torch.nn.Module`): The policy, unwrapped.
        acceleration ([`Acceleration`]): The accelerations of the run.
        temperature (`float`): Of sampling and scoring.
        is_possible (`bool`): Whether one process can compute a row: its weights are not sharded, and it is text.
        changed (`Callable`): Called when an acceleration was switched off.

    Attributes:
        score, samples (`str`, *optional*): What the comparison has found against packed rows and compact generation;
            empty if nothing, `None` before it.
    """

    remembers = ("score", "samples")

    def __init__(
        self,
        args,
        accelerator,
        policy: torch.nn.Module,
        acceleration: Acceleration,
        temperature: float,
        is_possible: bool,
        changed: Callable[[], None],
    ):
        self.args = args
        self.accelerator = accelerator
        self.policy = policy
        self.acceleration = acceleration
        self.temperature = temperature
        self.is_possible = is_possible
        self.score: str | None = None if is_possible else ""
        self.samples: str | None = None if is_possible else ""
        self._changed = changed

    # -------------------------------------------------------------------------------------------------- a row's score

    def compare_score(self, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> None:
        """
        Compare a row's score, once.

        Args:
            prompts, completions (`Sequence[list[int]]`): Token ids of this process's rows.

        Raises:
            [`InputError`]: TRL's score is not the model's own, or `pack_groups` is `"on"` and packed rows are not.
        """
        if self.score is not None or self.args.is_trl:
            return
        # A rollout function may return tensors or arrays.
        prompts, completions = ([[*map(int, ids)] for ids in rows] for rows in (prompts, completions))
        rows = rows_of_a_prompt(prompts, completions)
        head, score = None, None
        if rows:
            prompt = prompts[rows[0]]
            head, score = self._find_differences(prompt, [completions[row][:LONGEST] for row in rows])
        found = gather_object([(bool(rows), head, score)])
        if not any(has_rows for has_rows, *_ in found):
            return  # every completion is empty
        head, score = (next(filter(None, reasons), "") for reasons in list(zip(*found, strict=True))[1:])
        if head:
            raise InputError(head)
        self.score = score
        self._apply()

    @torch.no_grad()
    def _find_differences(self, prompt: list[int], completions: list[list[int]]) -> tuple[str | None, ...]:
        """Return what is wrong with TRL's head and with packed rows: sentences, or `None`."""
        policy = self.policy
        completion = max(completions, key=len)
        exact = allowed(policy, None)
        rounded = allowed(policy, mixed_dtype(self.accelerator))
        with own_random_state(), checkpointing_off(policy.modules()):
            with evaluation_mode(policy):
                (own,) = own_logps(policy, prompt, [completion], self.temperature)
                differs = mean_difference(fused_logps(policy, prompt, completion), own)
            if not differs <= exact:
                return self._describe_head(differs, exact), None
            if not self.acceleration.packs:
                return None, None
            with training_mode(policy):
                packed = self._packed_logps(prompt, completions)[completions.index(completion)][: len(own)]
            differs = mean_difference(packed, own)
        if differs <= rounded:
            return None, None
        return None, _describe("scores in packed rows", differs, rounded)

    def _packed_logps(self, prompt: list[int], completions: list[list[int]]) -> torch.Tensor:
        device = next(self.policy.parameters()).device
        ids, mask = rows_padded_right(prompt, completions, device)
        width = ids.shape[1] - len(prompt)
        return self.acceleration.score(self.policy, ids, mask, width)[0]

    def _describe_head(self, differs: float, exact: float) -> str:
        kind = self.policy.config.get_text_config().model_type
        return (
            f"model_type={kind!r} is not supported: TRL's score of a left-padded row differs from the model's own "
            f"forward by {differs:.2g} nats (rounding explains {exact:.2g}), so another policy would be trained than "
            f"is sampled. Supported: {PAGE}, and models that agree."
        )

    # ---------------------------------------------------------------------------------------------- a prompt's samples

    def sample(self, prompts: Sequence[list[int]], draw: Draw) -> Drawn:
        """
        Sample compactly and, once, compare the samples.

        Args:
            prompts (`Sequence[list[int]]`): Token ids of this process's rows.
            draw (`Callable`): Samples compactly. Takes the temperature of the log-probabilities that it returns, or
                `None` for what the run needs.

        Returns what `draw` returns; `None` for the completions if compact generation is now off: the random states are
        then those before. Raises [`InputError`]: `compact_generation` is `"on"`, and the samples differ.
        """
        if self.samples is not None:
            return draw(None)
        before = random_states()
        completions, logps = draw(self.temperature)
        reason = self._find_difference(prompts, completions, logps)
        self.samples = first_of_processes(reason) or ""
        self._apply()
        if self.samples:
            restore(before)
            return None, None
        return completions, logps if self.acceleration.compact.measures else None

    @torch.no_grad()
    def _find_difference(
        self, prompts: Sequence[list[int]], completions: list[list[int]], logps: list[list[float]]
    ) -> str | None:
        rows = rows_of_a_prompt(prompts, completions)
        if not rows:
            return None
        with own_random_state(), checkpointing_off(self.policy.modules()), evaluation_mode(self.policy):
            texts = [completions[row][:LONGEST] for row in rows]
            own = own_logps(self.policy, prompts[rows[0]], texts, self.temperature)
        drawn = [torch.tensor(logps[row][: len(each)]).to(each) for row, each in zip(rows, own, strict=True)]
        differs = mean_difference(torch.cat(drawn), torch.cat(own))
        # A full model is sampled under Accelerate's autocast, which wraps its forward.
        autocast = None if isinstance(self.policy, PeftModel) else mixed_dtype(self.accelerator)
        limit = allowed(self.policy, autocast)
        return None if differs <= limit else _describe("log-probabilities of compact generation", differs, limit)

    # ------------------------------------------------------------------------------------------------ what follows

    def _apply(self) -> None:
        """Switch off what was found. Raises [`InputError`]: a key is `"on"`."""
        reasons = {
            "pack_groups": self.score,
            "compact_generation": self.samples,
            "merge_micro_batches": None,
        }
        off = self.acceleration.switch_off(reasons)
        for key, reason in off.items():
            if getattr(self.args, key) == "on":
                raise InputError(f"{key}='on' is not supported here: {reason} Set {key}: auto, or \"off\".")
            if self.accelerator.is_main_process:
                logger.warning("Running without %s: %s", key, reason)
        if off:
            self._changed()

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        if changed and self.is_possible:  # another acceleration may be on
            return
        super().load_state_dict(state, changed)
        self._apply()


def _describe(what: str, differs: float, limit: float) -> str:
    return (
        f"{what} differ from the policy's own forward by {differs:.2g} nats per token at the first batch (rounding "
        f"explains {limit:.2g})."
    )


# ----------------------------------------------------------------------------------------------------- computations


def rows_of_a_prompt(prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> list[int]:
    """Find up to [`ROWS`] rows of one prompt whose completions have tokens: those of the first such row."""
    rows = [row for row, completion in enumerate(completions) if completion]
    return [row for row in rows if prompts[row] == prompts[rows[0]]][:ROWS]


def fused_logps(policy: torch.nn.Module, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Compute the log-probabilities of a completion `(T,)` in a left-padded row, by TRL's fused head."""
    device = next(policy.parameters()).device
    tokens = [*prompt, *completion]
    ids = torch.tensor([[tokens[0]] * PADDING + tokens], device=device)
    mask = torch.ones_like(ids)
    mask[:, :PADDING] = 0
    labels = ids.clone()
    labels[:, : -len(completion)] = -100
    model = plain_model(policy)
    if policy.config.model_type in LEARNED_POSITIONS:
        model = with_positions(model)
    scored = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return scored.log_probs[0, -len(completion) :]


def random_states() -> list[torch.Tensor]:
    """Return the states of torch's generators: of the CPU and of all GPUs in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def restore(states: list[torch.Tensor]) -> None:
    """Restore what [`random_states`] returned."""
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])
