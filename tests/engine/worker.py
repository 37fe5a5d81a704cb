"""
Trains with vLLM on a CPU, in this process. After every hand-over of weights the log-probabilities that vLLM gives its
tokens are compared with forwards of the policy and of the base. Argument: JSON of the configuration's keys; `resume`
is a checkpoint, `lora` false trains all weights. The last line of stdout is JSON.
"""

import functools
import hashlib
import json
import os
import signal
import sys

import torch
import vllm
import vllm.model_executor.layers.utils as layers
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TopKLogitsWarper, TopPLogitsWarper
from transformers.generation import MinPLogitsWarper
from trl.generation import vllm_generation

from trl_prorl import ProRLConfig, ProRLTrainer, embedded_model, task_reward
from trl_prorl.tasks import get_task


# Left to itself, it computes in half precision whatever the weights are.
vllm_generation.LLM = functools.partial(vllm.LLM, dtype=os.environ["ENGINE_DTYPE"], enforce_eager=True)


def warped(logits, args):
    """The log-probabilities from which vLLM samples."""
    logits = logits.float() / args.temperature
    for on, warper in (
        (args.top_k, lambda: TopKLogitsWarper(args.top_k)),
        (args.top_p < 1.0, lambda: TopPLogitsWarper(args.top_p)),
        (args.min_p, lambda: MinPLogitsWarper(args.min_p)),
    ):
        logits = warper()(None, logits) if on else logits
    return logits.log_softmax(dim=-1)


@torch.no_grad()
def off(model, args, prompt_ids, completion_ids, logprobs):
    """Largest and mean distance of vLLM's log-probabilities from the model's, in nats; `inf` outside the support."""
    found = []
    for prompt, completion, given in zip(prompt_ids, completion_ids, logprobs, strict=True):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        mine = warped(logits, args).gather(1, torch.tensor(completion)[:, None])[:, 0]
        found.append((mine - torch.tensor([one[0] for one in given])).abs())
    found = torch.cat(found)
    return [found.max().item(), found[found.isfinite()].mean().item()]


def bits(model, lora=False):
    """Of the frozen weights, or of the adapter and the reference."""
    of = {name: param.detach() for name, param in model.named_parameters() if ("lora_" in name) == lora}
    return hashlib.sha256(b"".join(of[name].contiguous().view(torch.uint8).numpy() for name in sorted(of))).hexdigest()


def main(keys):
    resume = keys.pop("resume", None)
    lora = keys.pop("lora", True)
    dies_at = keys.pop("dies_at", None)
    disturbed = keys.pop("disturbed", False)
    if not keys.get("vllm_enable_lora"):  # on a CPU vLLM packs weights once they are loaded, and cannot take new ones
        linear = torch.nn.functional.linear
        layers.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: setattr(layer, "cpu_linear", linear)
    dtype = getattr(torch, os.environ["ENGINE_DTYPE"])
    torch.set_num_threads(1)
    task = get_task("sorting", level=3, reward="inclusion_ordering")
    model = AutoModelForCausalLM.from_pretrained(embedded_model("embedded:sorting"), dtype=dtype)
    fixed = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "max_completion_length": 16,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "vllm_max_model_length": 64,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "bf16": False,
        "seed": 1,
    }
    args = ProRLConfig(**(fixed | {"gradient_checkpointing": False} | keys))
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
    rows = Dataset.from_list(list(task.rows("train", 64)))
    held_out = Dataset.from_list(list(task.rows("test", 8))) if args.eval_strategy != "no" else None
    trainer = ProRLTrainer(
        model, task_reward(task), args, train_dataset=rows, eval_dataset=held_out, peft_config=adapter
    )
    policy = trainer.accelerator.unwrap_model(trainer.model)
    found = []
    before = bits(policy)
    generate = trainer.vllm_generation.generate

    def compared(prompts, *rest, **named):
        if disturbed:
            torch.rand(100)
        drawn = generate(prompts, *rest, **named)
        if dies_at == trainer.state.global_step:
            os.kill(os.getpid(), signal.SIGKILL)
        mode = policy.training
        policy.eval()
        row = {"step": trainer.state.global_step, "policy": off(policy, args, *drawn[:3]), "drawn": drawn[1]}
        if lora:
            with policy.disable_adapter():
                row["base"] = off(policy, args, *drawn[:3])
        policy.train(mode)
        found.append(row)
        return drawn

    trainer.vllm_generation.generate = compared
    trainer.train(resume_from_checkpoint=resume)
    said = {"found": found, "same_base": bits(policy) == before, "log": trainer.state.log_history}
    said["adapters"] = bits(policy, lora=True)
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
