"""Generation: seconds of every engine for the same prompts and lengths, and what merging the adapter changes."""

import json
import shutil
import statistics
import warnings
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.eval.gpucheck.attention import failing
from trl_prorl.eval.gpucheck.clock import begin_memory, free, peak_memory, seconds_of
from trl_prorl.eval.gpucheck.engines import ENGINES, NOW, Bench
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.process import last_words, run_apart
from trl_prorl.eval.gpucheck.result import Result, Sheet
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.vllm_engine import sample_with_vllm
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.shapes import new_model
from trl_prorl.rollout.generation import MERGED_BOUND
from trl_prorl.rollout.merged_copy import MergedCopy, disturbed
from trl_prorl.scoring.packing_probe import tokens


GAIN = 1.25  # times as fast as now: what takes a fifth less time stays
VLLM = "vLLM, merged"
LIMIT = 140.0  # seconds of vLLM, most of which it needs to begin
WARM_UP = 8  # tokens of every completion, before each batch is timed


def generation(size: Size, folder: Path) -> Result:
    """All engines on the first shape at GSM8K's lengths."""
    result = Result()
    dtype = torch.bfloat16 if size.on_card else torch.float32
    args = size.arguments(dtype=dtype, shape=size.shapes[0])
    bench = new_bench(args, size)
    batches = [lengths_of(Batches(args, 1.0), number) for number in range(max(1, args.rounds - 1))]
    made = statistics.median(sum(lengths) for _, lengths in batches)
    rows, seconds = [], {}
    for name, engine in ENGINES.items():
        if (reason := why_skipped(engine.needs, size)) is not None:
            result.skipped[name] = reason
            continue
        if (reason := size.no_time) is not None:
            result.skipped[name] = reason
            continue
        try:
            times, peak = timed(engine.sample, bench, batches, size)
        except Exception as problem:  # of whatever kind: libraries' engines differ in what they can
            if name == NOW or name == "generate":
                result.check(f"generation: {name}", False, failing(problem))
            else:
                result.skipped[name] = failing(problem)
            continue
        finally:
            free(size)
        seconds[name] = times
        rows.append([name, statistics.median(times), None, made / statistics.median(times), peak])
    difference = off_policy(bench)
    found = f"{difference:.1e} nats a token, allowed {MERGED_BOUND}"
    result.check("a merged copy is near the policy", difference <= MERGED_BOUND, found)
    if (reason := why_skipped(("cuda", "vllm"), size) or size.no_time) is not None:
        result.skipped[VLLM] = reason
    else:
        _with_vllm(result, rows, seconds, bench, batches, made, folder)
    for row in rows:
        row[2] = statistics.median(seconds[NOW]) / row[1] if NOW in seconds else None
    columns = ["engine", "seconds", f"× as fast as {NOW}", "tokens/s", "peak above the model, GiB"]
    note = decision({row[0]: row[1] for row in rows}) if size.on_card else "At toy size nothing is decided."
    note += " Continuous batching takes the memory that is free, and its seconds hold the beginning of its manager."
    title = f"Generation: {args.shape}, {args.prompts} prompts × {args.num_generations}, GSM8K's lengths, LoRA"
    result.sheets.append(Sheet(title, columns, rows, note))
    result.facts["rounds"] = seconds
    return result


def new_bench(args: Namespace, size: Size) -> Bench:
    """A policy with a LoRA adapter that does something, and its merged copy."""
    tokenizer = byte_tokenizer()
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = get_peft_model(new_model(args, tokenizer), lora).to(size.device).eval()
    with torch.no_grad():
        for name, param in policy.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.01)
    copy = MergedCopy(policy)
    copy.refresh()
    copy.model.eval()
    return Bench(policy, copy, size, tokenizer.pad_token_id, tokenizer.eos_token_id)


def lengths_of(batches: Batches, number: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of a batch, and how long its completions are to be: at least their first token and their end."""
    prompts, completions = batches.draw(number)
    return prompts, [max(2, len(ids)) for ids in completions]


def timed(sample, bench: Bench, batches: list, size: Size) -> tuple[list[float], float | None]:
    """
    Seconds of every batch, and the peak above what was held, in GiB. The first tokens of each batch are sampled
    beforehand, with room for all of it: its widths may need another kernel, or another graph, than the last batch's.
    """
    times, above = [], []
    for prompts, lengths in batches:
        found, sampled = [], partial(sample, bench, prompts, longest=max(lengths))
        with torch.no_grad():
            sampled(lengths=[min(length, WARM_UP) for length in lengths])
            held = begin_memory(size)
            took = seconds_of(lambda f=found, s=sampled, n=lengths: f.extend(s(lengths=n)), size)
        if found != lengths:
            raise RuntimeError("the completions are not as long as they were to be")
        times.append(took)
        above.append((peak_memory(size) or 0.0) - held)
    return times, max(above) if size.on_card else None


def off_policy(bench: Bench) -> float:
    """Mean absolute difference of log-probabilities between the policy and its merged copy, in nats a token."""
    ids = tokens(48, bench.policy.get_input_embeddings().weight.shape[0])[None].to(bench.size.device)
    with torch.no_grad(), disturbed(bench.policy, "default"):
        bench.copy.refresh()
        models = (bench.policy, bench.copy.model)
        logps = [model(input_ids=ids).logits.float().log_softmax(-1) for model in models]
    chosen = [each[:, :-1].gather(-1, ids[:, 1:, None]) for each in logps]
    return (chosen[0] - chosen[1]).abs().mean().item()


def _with_vllm(result, rows, seconds, bench: Bench, batches: list, made: float, folder: Path) -> None:
    weights, out, log = folder / "merged", folder / "vllm.json", folder / "vllm.log"
    model = bench.policy.merge_and_unload()
    model.save_pretrained(weights)
    bench.policy.to("cpu")
    bench.copy.model.to("cpu")
    free(bench.size)
    out.unlink(missing_ok=True)
    # Its first batch warms up.
    ended = run_apart(sample_with_vllm, (str(weights), batches[:1] + batches, str(out)), log, LIMIT, fork=False)
    shutil.rmtree(weights)
    if ended.status != 0 or not out.exists():
        how = f"was stopped after {LIMIT:.0f} s" if ended.status is None else f"exit code {ended.status}"
        result.skipped[VLLM] = f"fails here: {how}; {last_words(log)}"
        return
    seconds[VLLM] = json.loads(out.read_text())[1:]
    median = statistics.median(seconds[VLLM])
    rows.append([VLLM, median, None, made / median, None])


def decision(seconds: dict[str, float]) -> str:
    """What gains enough to stay, in a sentence."""
    if NOW not in seconds:
        return "Nothing is decided: the generation of now was not measured."
    gains = {name: seconds[NOW] / value for name, value in seconds.items()}
    better = [f"{name} ({gain:.2f}×)" for name, gain in gains.items() if gain >= GAIN]
    merging = seconds["compact"] / seconds[NOW] if "compact" in seconds else None
    said = f"Merging the adapter makes compact generation {merging:.2f} times as fast. " if merging else ""
    return said + (f"Worth building in: {', '.join(better)}." if better else "Nothing else takes a fifth less time.")
