"""
One comparison before the first batch: TRL's score, packed rows and compact samples against the policy's own forward.

The policy is sampled by its own forward. Trained by other log-probabilities, it would be another policy. Rows are made
for it, so that nothing of the run is used up: completions of different lengths, and prompts of which one is padded.
"""

from collections.abc import Callable

import torch
from peft import PeftModel
from transformers import GenerationConfig
from trl.trainer.utils import pad

from ..cli.dropout import evaluation_mode, own_random_state
from ..cli.model_defaults import plain_generation_config
from ..cli.prompts import pad_left
from ..supported import PAGE
from ..upstream.modules import checkpointing_off
from .acceleration import Acceleration
from .generation import CompactGeneration


VOCABULARY = 64  # tokens of which the rows consist: the first ones of the model
PROMPTS = (3, 16)  # tokens of each prompt
COMPLETIONS = (16, 9)  # tokens of each completion of a prompt
ENDING = 8  # every eighth token ends a sampled completion, so that rows are dropped early

# Bound on the mean difference of log-probabilities, in nats per token: in fp32, and in units of the last place of a
# coarser dtype. A deep bf16 model scored in one batch is 0.03 to 0.05 (4 to 6 units) off its token-by-token values; a
# token at a wrong position is off by tenths of a nat and more.
EXACT = 1e-3
UNITS = 12
TF32_UNIT = 2.0**-10

HEAD = "TRL's score"  # its difference is an error, because nothing takes its place

Rows = list[list[int]]


@torch.no_grad()
def find_differences(
    policy: torch.nn.Module,
    acceleration: Acceleration,
    trl_score: Callable,
    temperature: float,
    autocast: torch.dtype | None,
) -> dict[str, str]:
    """
    Return what differs from the policy's own forward by more than rounding: sentences by key, or by [`HEAD`].

    Weights, modes and random states stay as they are. A policy whose log-probabilities are not finite is not compared:
    that is another check's error.

    Args:
        policy (`torch.nn.Module`): The policy, unwrapped.
        acceleration ([`Acceleration`]): The accelerations of the run.
        trl_score (`Callable`): TRL's method that scores a batch.
        temperature (`float`): Temperature of sampling and scoring.
        autocast (`torch.dtype`, *optional*): The dtype of mixed precision, in which packed rows are scored.
    """
    differences = {}
    exact = allowed(policy, None)
    rounded = allowed(policy, autocast)
    with own_random_state(), checkpointing_off(policy.modules()), evaluation_mode(policy):
        prompts, completions = make_rows(policy)
        expected = own_values(policy, prompts, completions, temperature)
        if not expected.isfinite().all():
            return {}
        ids, mask, length = make_batch(prompts, completions, expected.device)
        counts = mask[:, -length:].bool()
        scored = trl_score(without_autocast(policy), ids, mask, length)[0]
        difference = mean_difference(scored[counts], expected)
        if not difference <= exact:
            differences[HEAD] = describe_head(policy, difference, exact)
        if acceleration.packs:
            difference = mean_difference(acceleration.score(policy, ids, mask, length)[0][counts], expected)
            if not difference <= rounded:
                differences["pack_groups"] = describe("scores in packed rows", difference, rounded)
        if acceleration.compact is not None:
            completions, logps = sample(policy, acceleration.compact, prompts, temperature)
            expected = own_values(policy, prompts, completions, temperature)
            difference = mean_difference(torch.tensor(sum(logps, [])), expected.cpu())
            # A full model may be sampled under Accelerate's autocast, which wraps its forward.
            limit = exact if isinstance(policy, PeftModel) else rounded
            if not difference <= limit:
                text = describe("log-probabilities of compact generation", difference, limit)
                differences["compact_generation"] = text
    return differences


def make_rows(policy: torch.nn.Module) -> tuple[Rows, Rows]:
    """Make prompts and completions, a pair for each row: always the same tokens."""
    vocabulary = min(VOCABULARY, policy.get_input_embeddings().weight.size(0))
    generator = torch.Generator().manual_seed(0)
    prompts = []
    completions = []
    for prompt_length in PROMPTS:
        prompt = torch.randint(vocabulary, (prompt_length,), generator=generator).tolist()
        for length in COMPLETIONS:
            prompts.append(prompt)
            completions.append(torch.randint(vocabulary, (length,), generator=generator).tolist())
    return prompts, completions


def make_batch(prompts: Rows, completions: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return ids and mask `(R, P + T)` of rows as TRL pads them, and T."""
    prompt_ids, prompt_mask = pad_left(prompts, 0)
    texts = [torch.tensor(completion) for completion in completions]
    completion_ids = pad(texts, 0)
    completion_mask = pad([torch.ones_like(text) for text in texts], 0)
    ids = torch.cat([prompt_ids, completion_ids], dim=1).to(device)
    mask = torch.cat([prompt_mask, completion_mask], dim=1).to(device)
    return ids, mask, completion_ids.size(1)


def sample(
    policy: torch.nn.Module, compact: CompactGeneration, prompts: Rows, temperature: float
) -> tuple[Rows, list[list[float]]]:
    """Sample completions compactly. Returns their token ids and log-probabilities."""
    ends = list(range(0, policy.get_input_embeddings().weight.size(0), ENDING))
    config = GenerationConfig(
        max_new_tokens=max(COMPLETIONS),
        do_sample=True,
        temperature=temperature,
        top_k=0,
        pad_token_id=0,
        eos_token_id=ends,
        disable_compile=True,
    )
    with plain_generation_config(policy):
        samples = compact.sample(policy, prompts, config, ends, logps_at=temperature)
    compact.measures = False  # the next log-probabilities may be of a rollout function's own sampler
    return samples


def own_values(policy: torch.nn.Module, prompts: Rows, completions: Rows, temperature: float) -> torch.Tensor:
    """Return the log-probabilities `(N,)` of all rows' completions, each row computed alone."""
    rows = zip(prompts, completions, strict=True)
    return torch.cat([own_logps(policy, prompt, completion, temperature) for prompt, completion in rows])


def own_logps(policy: torch.nn.Module, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    """Return log-probabilities `(T,)` of a completion by the policy's plain forward, in fp32."""
    device = next(policy.parameters()).device
    ids = torch.tensor([[*prompt, *completion]], device=device)
    logits = plain_model(policy)(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    first = len(prompt)
    logps = (logits[0, first - 1 : -1].float() / temperature).log_softmax(-1)
    labels = ids[0, first:, None].to(logps.device)
    return logps.gather(-1, labels)[:, 0]


def without_autocast(policy: torch.nn.Module) -> Callable:
    """Return the forward without the autocast of TRL's method: rounding would hide what its head leaves out."""
    model = plain_model(policy)

    def forward(**inputs):
        with torch.autocast(policy.device.type, enabled=False):
            return model(**inputs)

    return forward


def plain_model(policy: torch.nn.Module) -> Callable:
    """Return the forward without Accelerate's autocast: rounding in the head would hide a difference."""
    if isinstance(policy, PeftModel):
        return policy.get_base_model()
    return getattr(policy, "_original_forward", policy)


def mean_difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    return (values.float() - expected.to(values.device).float()).abs().mean().item()


def describe(what: str, difference: float, limit: float) -> str:
    return (
        f"{what} differ from the policy's own forward by {difference:.2g} nats per token (rounding explains "
        f"{limit:.2g})."
    )


def describe_head(policy: torch.nn.Module, difference: float, limit: float) -> str:
    kind = policy.config.get_text_config().model_type
    return (
        f"model_type={kind!r} is not supported: TRL's score of a left-padded row differs from the model's own "
        f"forward by {difference:.2g} nats (rounding explains {limit:.2g}), so another policy would be trained than "
        f"is sampled. Supported: {PAGE}, and models that agree."
    )


def allowed(policy: torch.nn.Module, autocast: torch.dtype | None) -> float:
    """Return the bound on rounding, in nats per token."""
    is_quantised = not all(param.is_floating_point() for param in policy.parameters())
    unit = coarsest_unit(policy, torch.bfloat16 if is_quantised else autocast)
    return max(EXACT, UNITS * unit)


def coarsest_unit(model: torch.nn.Module, autocast: torch.dtype | None) -> float:
    """Return the spacing near 1 in the coarsest dtype of a model's products."""
    dtypes = {param.dtype for param in model.parameters() if param.is_floating_point()}
    if autocast is not None:
        dtypes.add(autocast)
    units = [torch.finfo(dtype).eps for dtype in dtypes]
    on_cuda = next(model.parameters()).device.type == "cuda"
    if on_cuda and torch.float32 in dtypes and torch.backends.cuda.matmul.fp32_precision == "tf32":
        units.append(TF32_UNIT)  # what a product reads of fp32
    return max(units)


def mixed_dtype(accelerator) -> torch.dtype | None:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
