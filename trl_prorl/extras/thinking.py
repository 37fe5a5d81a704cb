"""
Interruption of over-long thinking: after a token budget, a text asks for the answer (budget forcing, arXiv
2501.19393).
"""

from collections.abc import Callable


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
            for row, answer in zip(late, trainer.generate_tokens(interrupted, answer_tokens), strict=True):
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
