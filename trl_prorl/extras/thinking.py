"""
Interruption of over-long thinking: after a token budget, a text asks for the answer (budget forcing, arXiv
2501.19393).
"""

from collections.abc import Callable
from typing import Any

from ..errors import InputError


def make_rollout(keys: Any, args: Any, tokenizer: Any) -> Callable | None:
    """
    Return the rollout function of `thinking_budget`; `None` if it is off, for TRL's own generation.

    Args:
        keys ([`~trl_prorl.keys.TaskKeys`]), args ([`ProRLConfig`]): The recipe.
        tokenizer (`PreTrainedTokenizerBase`): The policy's.

    Raises:
        [`InputError`]: With vLLM, or if a completion would exceed `max_completion_length`.
    """
    budget = keys.thinking_budget
    if budget is None:
        return None
    if args.use_vllm:
        raise InputError(f"thinking_budget={budget} is not supported with vLLM. Set use_vllm: false.")
    text_tokens = len(tokenizer(keys.thinking_text, add_special_tokens=False).input_ids)
    needed = budget + text_tokens + keys.thinking_answer_tokens
    if needed > args.max_completion_length:
        raise InputError(
            f"thinking_budget={budget} with the {text_tokens} tokens of thinking_text and thinking_answer_tokens="
            f"{keys.thinking_answer_tokens} exceeds max_completion_length={args.max_completion_length}. Raise "
            f"max_completion_length to {needed}, or lower thinking_budget."
        )
    return make_interrupted_rollout(budget, keys.thinking_answer_tokens, keys.thinking_text)


def make_interrupted_rollout(budget: int, answer_tokens: int, text: str) -> Callable:
    r"""
    Make a rollout function for [`ProRLTrainer`] with transformers' generation.

    A completion that has not ended within the budget is continued with `text` and then with the answer. The tokens of
    `text` are context and carry no loss.

    Args:
        budget (`int`): Tokens.
        answer_tokens (`int`): Maximum tokens of the answer.
        text (`str`): Asks for the answer, such as `"\n\nFinal answer: "`.
    """

    def rollout(prompts, trainer):
        forced = trainer.processing_class(text, add_special_tokens=False).input_ids
        prompt_ids = trainer.tokenize_prompts(prompts)
        completions = trainer.generate_tokens(prompt_ids, budget)
        late = [row for row, ids in enumerate(completions) if ids[-1] not in trainer.eos_token_ids]
        masks = [[1] * len(ids) for ids in completions]
        if late:
            interrupted = [prompt_ids[row] + completions[row] + forced for row in late]
            answers = trainer.generate_tokens(interrupted, answer_tokens)
            for row, answer in zip(late, answers, strict=True):
                completions[row] = completions[row] + forced + answer
                masks[row] += [0] * len(forced) + [1] * len(answer)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": masks,
            "interrupted": [row in late for row in range(len(completions))],
        }

    return rollout
