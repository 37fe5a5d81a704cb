"""A run in which a model calls a tool, and TRL writes the tool's answer into its completions."""

import random
from pathlib import Path

import trl
from tokenizers import AddedToken

from trl_prorl.embedded.shipped import byte_tokenizer


TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": %d}}\n</tool_call><|im_end|>'
KEYS = {"max_steps": 3, "max_completion_length": 160, "learning_rate": 1e-3}


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def tools_tokenizer():
    """Make a tokenizer of bytes whose chat template is Qwen3's as TRL ships it."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer


def speaks(trainer):
    """
    In the place of sampling: of every three completions two call the tool, and one of those calls it a second time.

    Everything else, the calls of the tool, the mask and the template, is TRL's.
    """
    draw = random.Random(5)
    tokenizer = trainer.processing_class

    def generate(prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        first = num_generations > 1
        texts = []
        for row in range(len(prompt_ids)):
            if row % 3 < 2 if first else row % 2:
                said = CALL % (draw.randrange(100), draw.randrange(9))
            else:
                said = f"it is {draw.randrange(200)}<|im_end|>"
            texts.append("x" * draw.randrange(4) + said)
        return [tokenizer(text, add_special_tokens=False).input_ids for text in texts], None

    trainer._generate_single_turn = generate
    return trainer


def rewarded(completion_ids, **columns):
    """Differs within groups, by lengths alone; every second group is rewarded alike."""
    return [float(len(ids) % 7) if row // 4 % 2 else 1.0 for row, ids in enumerate(completion_ids)]


class Adds:
    """An environment of TRL, whose turns are answered by its own method."""

    def reset(self, **row):
        """Begin."""

    def add(self, a: int, b: int) -> int:
        """
        Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b
