"""The embedded model: a Qwen2 of 0.7 million parameters that a laptop's CPU makes in a minute, for demos and tests.

It reads bytes, so its tokenizer covers any text. It is warm-started by supervised fine-tuning on demonstrations of mixed
quality: a fixed share follows wrong rules, as a pretrained model's data does, so that reinforcement learning has
something to find. Deterministic for a given number of threads; cached by the content of its settings.

`python -m trl_prorl.embedded` makes it and prints its path.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

from tasks import get_task

from .base_model import CACHE


PAD, USER, ASSISTANT, SYSTEM, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class EmbeddedSettings:
    """
    What the embedded model is made of.

    Args:
        task (`str`), level (`int`):
            The task it is warm-started on.
        wrong_share (`float`):
            Share of demonstrations that follow a wrong rule.
        rows, steps, batch_size (`int`), learning_rate, adam_beta2 (`float`), seed (`int`):
            The supervised run.
        hidden_size, layers, heads, intermediate_size (`int`), initializer_range (`float`):
            The network. Its weights start larger than a wide network's 0.02.
    """

    task: str = "reverse_digits"
    level: int = 3
    wrong_share: float = 0.55
    rows: int = 8192
    steps: int = 700
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 0
    hidden_size: int = 128
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 384
    initializer_range: float = 0.06
    adam_beta2: float = 0.95

    @property
    def key(self) -> str:
        """Content hash of the settings and of this file, which names the cached model."""
        text = json.dumps(asdict(self), sort_keys=True) + Path(__file__).read_text()
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the 256 bytes and five markers of a chat; it can encode any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    markers = [PAD, USER, ASSISTANT, SYSTEM, END]
    vocabulary = {token: number for number, token in enumerate(markers + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[USER, ASSISTANT, SYSTEM],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def wrong_answer(answer: str, rng: random.Random) -> str:
    """An answer by one of four wrong rules: copy the question, sort, rotate by one, or random digits."""
    question = answer[::-1]
    rule = rng.randrange(4)
    if rule == 0:
        return question
    if rule == 1:
        return "".join(sorted(question))
    if rule == 2:
        return question[1:] + question[:1]
    return "".join(rng.choice("0123456789") for _ in question)


def demonstrations(settings: EmbeddedSettings) -> Dataset:
    """Prompt-completion rows of mixed quality, from the task's train split alone."""
    rng = random.Random(settings.seed)
    rows = get_task(settings.task, level=settings.level).rows("train", settings.rows, seed=settings.seed)

    def demonstrate(row):
        answer = wrong_answer(row["answer"], rng) if rng.random() < settings.wrong_share else row["answer"]
        return {"prompt": row["prompt"], "completion": [{"role": "assistant", "content": answer}]}

    return Dataset.from_list([demonstrate(row) for row in rows])


def new_model(settings: EmbeddedSettings, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """The network with random weights, from the settings' seed."""
    set_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=2048,
        initializer_range=settings.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def embedded_model(settings: EmbeddedSettings | None = None, cache: Path = CACHE) -> str:
    """
    Path of the embedded model; it is made if the cache does not hold it.

    Args:
        settings ([`EmbeddedSettings`], *optional*):
            Defaults to those of the demo.
        cache (`Path`, *optional*, defaults to `runs/embedded`):
            Folder of the cached models.
    """
    settings = settings or EmbeddedSettings()
    folder = Path(cache) / settings.key
    if (folder / "config.json").exists():
        return str(folder)
    print(f"The embedded model is made first, once, in 1 to 3 minutes: {folder}", file=sys.stderr)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    tokenizer = byte_tokenizer()
    model = new_model(settings, tokenizer)
    args = SFTConfig(
        output_dir=str(aside),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        adam_beta2=settings.adam_beta2,
        seed=settings.seed,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
    )
    trainer = SFTTrainer(model=model, args=args, train_dataset=demonstrations(settings), processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    try:
        aside.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(aside)
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(embedded_model(cache=args.cache))


if __name__ == "__main__":
    main()
