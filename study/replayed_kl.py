"""
Plain with a KL on other tasks: the policy is held to the base where it is not trained, on texts that the base wrote
there. The runner starts it in place of the product's training where an arm has `trained_by: study.replayed_kl`:

    python -m study.replayed_kl runs/study/…/replayed_kl-seed71-600.yaml

The recipe is that of the family, trained by the product's trainer, whose loss gets one more term.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, set_seed

from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling, prompt_ids, sample
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.launch.command_line import check_arguments, parse
from trl_prorl.train import find_model, run
from trl_prorl.trainer import ProRLTrainer
from trl_prorl.weights import load_model


TASKS = ("sorting@3", "sums@3")
COEFFICIENT = 1.0
IN_A_BATCH = 8  # texts, as many of each task
QUESTIONS = 1200  # of each task: those of 300 batches
TOGETHER = 300  # questions of one call of `generate`


class Text(NamedTuple):
    """A text of the base, in tokens: the `prompt`, and the `completion` with the token that ended it."""

    prompt: list[int]
    completion: list[int]


class PaddedTexts(NamedTuple):
    """Texts as tensors `(B, L)`, padded on the right; `is_completion` says which tokens the base wrote."""

    ids: torch.Tensor
    attention_mask: torch.Tensor
    is_completion: torch.Tensor


def draw_texts(base: str, tokenizer, seed: int, longest: int) -> list[Text]:
    """
    Draw one text of the base for each question at T = 1, of at most `longest` tokens: a text of each task in turn.
    """
    set_seed(seed)
    model, compact = prepare_for_sampling(load_model(base, dtype=torch.float32))
    sampling = SamplingSettings(temperature=1.0, max_new_tokens=longest)
    of_tasks = []
    for name in TASKS:
        task = TaskName.parse(name).make()
        rows = list(task.rows("train", QUESTIONS))
        texts = []
        for start in range(0, QUESTIONS, TOGETHER):
            together = rows[start : start + TOGETHER]
            drawn = sample(model, tokenizer, task, together, 1, sampling, compact=compact)
            for prompt, (one,) in zip(prompt_ids(tokenizer, together), drawn, strict=True):
                texts.append(Text(prompt, one.ids))
        of_tasks.append(texts)
    return [text for in_turn in zip(*of_tasks, strict=True) for text in in_turn]


def texts_of_batch(texts: Sequence[Text], batch: int) -> list[Text]:
    """Return the texts of a batch of rollouts, by its number from 0; after the last ones come the first again."""
    begin = batch * IN_A_BATCH
    return [texts[place % len(texts)] for place in range(begin, begin + IN_A_BATCH)]


def pad_texts(texts: Sequence[Text], device: torch.device) -> PaddedTexts:
    """Pad texts on the right, by tokens that nothing attends to."""
    longest = max(len(text.prompt) + len(text.completion) for text in texts)
    shape = (len(texts), longest)
    ids = torch.zeros(shape, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.long)
    is_completion = torch.zeros(shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        begin = len(text.prompt)
        end = begin + len(text.completion)
        ids[row, :end] = torch.tensor([*text.prompt, *text.completion])
        attention_mask[row, :end] = 1
        is_completion[row, begin:end] = True
    return PaddedTexts(ids.to(device), attention_mask.to(device), is_completion.to(device))


def mean_kl(logits: torch.Tensor, base_logits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """
    Return KL(policy ‖ base), exact over the vocabulary, as a mean over the tokens that count.

    Args:
        logits, base_logits (`torch.Tensor` of shape `(B, T, V)`): Of the same places.
        counts (`torch.BoolTensor` of shape `(B, T)`): The places whose next token counts, at least one.

    Returns:
        `torch.Tensor`: A scalar, in nats a token.
    """
    logps = logits.float().log_softmax(dim=-1)
    base_logps = base_logits.float().log_softmax(dim=-1)
    kl = (logps.exp() * (logps - base_logps)).sum(dim=-1)
    return kl[counts].mean()


class ReplayedKLTrainer(ProRLTrainer):
    """
    Adds to the loss of every update the KL to the base on the texts of its batch.

    Raises:
        `ValueError`: An update consists of several micro-batches, each of which would add the whole KL.
    """

    def __init__(self, *given, texts: Sequence[Text], **named):
        super().__init__(*given, **named)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}: study.replayed_kl needs 1"
            )
        self.texts = texts

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if not self.model.training:
            return loss
        batch = self.state.global_step // self.num_iterations
        return loss + COEFFICIENT * self.replayed_kl(texts_of_batch(self.texts, batch))

    def replayed_kl(self, texts: Sequence[Text]) -> torch.Tensor:
        """Return the mean KL of the policy to the base, which is the policy without its adapter, on some texts."""
        policy = self.accelerator.unwrap_model(self.model)
        padded = pad_texts(texts, self.accelerator.device)
        inputs = {"input_ids": padded.ids, "attention_mask": padded.attention_mask}
        logits = policy(**inputs).logits[:, :-1]
        with torch.no_grad(), policy.disable_adapter():
            base_logits = policy(**inputs).logits[:, :-1]
        return mean_kl(logits, base_logits, padded.is_completion[:, 1:])


def main() -> None:
    recipe, *options = sys.argv[1:]
    task_args, args, model_args = parse(check_arguments(None, ["--config", recipe, *options]))
    base = find_model(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    # Before the trainer is built, which seeds the generators: so its first rollouts are plain's.
    texts = draw_texts(base, tokenizer, args.seed, args.max_completion_length)
    run(task_args, args, model_args, trainer_class=partial(ReplayedKLTrainer, texts=texts))


if __name__ == "__main__":
    main()
