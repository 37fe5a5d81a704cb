"""What a teacher (`ref_model`) costs, and whether it is better than the starting model."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

import torch
from transformers import GenerationConfig

from trl_prorl.cli.model_defaults import plain_generation_config
from trl_prorl.cli.prompts import cut_at_end, pad_left
from trl_prorl.eval.analysis.statistics import prompt_interval
from trl_prorl.eval.readiness.finding import Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB
from trl_prorl.eval.readiness.samples_of import sampled_by
from trl_prorl.eval.readiness.signal import Rollouts, sample_starting_model
from trl_prorl.kl import completion_mask, kl_values


COST = "the teacher's cost"
DISTANCE = "KL to the teacher at the start"
ACCURACY = "accuracy of the teacher"


def teacher_findings(
    trainer,
    rows: Sequence[Mapping],
    task,
    samples: Rollouts,
    logps: torch.Tensor | None,
    steps: Sequence[Mapping[str, float]],
    verify: Callable | None,
) -> list[Finding]:
    """
    Return the findings about a teacher; none without one.

    Args:
        trainer ([`~trl.GRPOTrainer`]): It has done the first steps.
        rows (`list[dict]`): The sampled prompts' rows.
        task ([`~trl_prorl.tasks.Task`], *optional*), verify (`Callable`, *optional*): Decide which completions are
            correct.
        samples ([`Rollouts`]): Of the starting model.
        logps (`torch.Tensor` of shape `(N, T)`, *optional*): The starting model's, of `samples.batch`.
        steps (`list[dict]`): The first steps' rows of `metrics.jsonl`.
    """
    teacher = getattr(trainer, "teacher", None)
    if teacher is None:
        return []
    tensors = [*teacher.ref_model.parameters(), *teacher.ref_model.buffers()]
    gib = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / GIB
    share = steps[0]["ref_time_fraction"]
    cost = Finding(COST, f"{gib:.2g} GiB, {share:.0%} of the first step", values={"gib": gib, "share": share})
    findings = [cost]
    if logps is not None:
        anchor_logps = trainer._score(trainer.anchors["ref"], samples.batch, trainer.args.per_device_train_batch_size)
        mask = completion_mask(samples.batch)
        kl = (kl_values(logps, anchor_logps) * mask).sum().item() / max(mask.sum().item(), 1)
        findings.append(Finding(DISTANCE, f"{kl:.2g} nats per token", values={"kl": kl}))
    if samples.correct:
        findings.append(accuracy_finding(trainer, rows, task, samples, verify))
    return findings


def accuracy_finding(trainer, rows: Sequence[Mapping], task, samples: Rollouts, verify: Callable | None) -> Finding:
    """Sample the teacher on the same prompts, and compare its accuracy with the starting model's."""
    with sampled_by(trainer, partial(sample_teacher, trainer)):
        of_teacher = sample_starting_model(trainer, rows, task, verify=verify)
    rates = [fmean(group) for group in of_teacher.groups(of_teacher.correct)]
    accuracy = fmean(rates)
    start = fmean(samples.correct)
    low, high = prompt_interval(rates)
    interval = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    change = "the teacher is no better than the starting model: use another ref_model, or none"
    number = f"{accuracy:.2f}{interval}, starting model {start:.2f}"
    return make_finding(ACCURACY, number, accuracy <= start, change, pass_rate=accuracy, of_starting_model=start)


@torch.no_grad()
def sample_teacher(trainer, prompt_ids: list[list[int]], *args, **kwargs) -> tuple[list[list[int]], None]:
    """Sample a completion of each prompt from the teacher, in place of TRL's method that samples the policy."""
    model = trainer.teacher.ref_model
    run_args = trainer.args
    config = GenerationConfig(
        max_new_tokens=run_args.max_completion_length,
        do_sample=True,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        min_p=trainer.min_p,
        repetition_penalty=trainer.repetition_penalty,
        pad_token_id=trainer.text_tokenizer.pad_token_id,
        eos_token_id=trainer.eos_token_ids,
    )
    device = next(model.parameters()).device
    ids, mask = (tensor.to(device) for tensor in pad_left(prompt_ids, config.pad_token_id))
    size = run_args.per_device_train_batch_size
    completions = []
    with plain_generation_config(model):
        for rows, masks in zip(ids.split(size), mask.split(size), strict=True):
            generated = model.generate(rows, attention_mask=masks, generation_config=config)
            completions += generated[:, ids.size(1) :].tolist()
    ends = set(trainer.eos_token_ids)
    return [cut_at_end(tokens, ends) for tokens in completions], None
