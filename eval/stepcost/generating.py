"""A generation by a trainer's own method, whose completions end where they were drawn to end."""

import contextlib
import functools
import io
import math

import torch
from peft import PeftModel
from transformers import LogitsProcessor, LogitsProcessorList
from trl import GRPOTrainer

from trl_prorl.eval.stepcost.batches import Batches


FIRST = 8  # of the token ids that say which completion is which; special tokens are below


class ForcedEnds(LogitsProcessor):
    """
    Ends every completion at its length. A completion's first token is forced too, and says which one it is, for rows
    are dropped on the way.
    """

    def __init__(self, lengths: list[int], width: int, end: int, device: torch.device):
        self.lengths, self.width, self.end = torch.tensor(lengths, device=device), width, end

    def __call__(self, input_ids, scores):
        done = input_ids.shape[1] - self.width
        rows = torch.arange(len(input_ids), device=scores.device)
        if done == 0:
            scores = torch.full_like(scores, -math.inf)
            scores[rows, FIRST + rows] = 0.0
            return scores
        # A row that has ended and is still computed, as transformers computes it, ends again and again.
        last = self.lengths[input_ids[:, self.width] - FIRST] <= done + 1
        scores[:, self.end] = -math.inf
        scores[last] = -math.inf
        scores[last, self.end] = 0.0
        return scores


def generation_seconds(trainer: GRPOTrainer, batches: Batches, number: int) -> float:
    """
    One generation of a batch by the trainer's own method, its completions as long as they were drawn.

    Raises:
        `RuntimeError`: they are not.
    """
    prompts, completions = batches.draw(number)
    lengths = [max(2, len(ids)) for ids in completions]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    models = [policy.get_base_model() if isinstance(policy, PeftModel) else policy]
    compact = getattr(trainer, "parts", {}).get("generation")
    if compact is not None and compact.copy is not None:
        models.append(compact.copy.model)
    end = trainer.processing_class.eos_token_id
    ends = ForcedEnds(lengths, max(map(len, prompts)), end, trainer.accelerator.device)
    for model in models:
        model.generate = functools.partial(type(model).generate, model, logits_processor=LogitsProcessorList([ends]))
    began = trainer.watch.now()
    try:
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            made, _ = trainer._generate_single_turn(prompts, None, {}, batches.args.num_generations)
    finally:
        for model in models:
            del model.generate
    seconds = trainer.watch.now() - began
    if compact is not None:
        compact.measures = False  # the batches that are trained on are others, and say nothing of the copy
    if [len(ids) for ids in made] != lengths:
        raise RuntimeError("the completions are not as long as they were drawn")
    return seconds
