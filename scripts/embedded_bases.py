"""
Makes an embedded model: a Qwen2 of 0.7 million parameters, for demos and tests, in minutes of one core.

It reads bytes, so its tokenizer covers any text. It is warm-started by supervised fine-tuning on demonstrations of
mixed quality: a fixed share follows wrong rules, as a pretrained model's data does, so that reinforcement learning has
something to find. The same settings give the same weights on one machine and others on another, whose arithmetic
rounds differently; therefore the bases come with the package, see [`~trl_prorl.embedded.shipped`].

    python scripts/embedded_bases.py --task sums --seed 7 --out DIR      # DIR is then a model_name_or_path
"""

import argparse
import json
import operator
import os
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

from trl_prorl import tasks
from trl_prorl.cli.environment import versions
from trl_prorl.embedded.shipped import DEFAULT, EMBEDDED, MADE_WITH, weights_sha256, write_hashes


@dataclass(frozen=True)
class EmbeddedSettings:
    """
    The settings an embedded model is made with.

    Args:
        task (`str`), level (`int`):
            The task it is warm-started on, or the name of several tasks ([`TAUGHT`]) in equal parts.
        wrong_share (`float`):
            Share of demonstrations that follow a wrong rule; of several tasks, among those of the first.
        rows, steps, batch_size (`int`), learning_rate, adam_beta2 (`float`), seed, threads (`int`):
            The supervised run. Another number of threads rounds differently as well.
        hidden_size, layers, heads, intermediate_size (`int`), initializer_range (`float`):
            The network. Its weights start larger than a wide network's 0.02.
        stored (`str`): `"bfloat16"`: the trained weights are rounded to bf16 and stored in two bytes each.
            `"float32"`: as they are. They are loaded as fp32 either way.
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
    threads: int = 1
    stored: str = "float32"


TAUGHT = {"three_tasks": ("reverse_digits", "sorting", "sums")}  # all but the first by right answers alone
FAMILIES = {
    "reverse_digits": EmbeddedSettings(),
    "sorting": EmbeddedSettings(task="sorting", wrong_share=0.6, steps=400),
    "sums": EmbeddedSettings(task="sums", wrong_share=0.65, steps=900),
    "three_tasks": EmbeddedSettings(task="three_tasks", rows=24576, steps=2000),
}


def settings_of(task: str = "reverse_digits", seed: int = 0, threads: int = 1) -> EmbeddedSettings:
    """Return the settings of an embedded model. All but the first one are stored in bf16."""
    settings = replace(FAMILIES[task], seed=seed, threads=threads)
    is_default = f"{EMBEDDED}:{task}:{seed}" == DEFAULT
    return settings if is_default else replace(settings, stored="bfloat16")


PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SYSTEM = "<|system|>"
END = "<|end|>"
MARKERS = (PAD, USER, ASSISTANT, SYSTEM, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the 256 bytes and five markers of a chat; it can encode any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*MARKERS, *alphabet])}
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


def wrong_reversal(row: Mapping, rng: random.Random) -> str:
    """Reverse digits by one of four wrong rules: copy the question, sort, rotate by one, or random digits."""
    question = row["answer"][::-1]
    rule = rng.randrange(4)
    if rule == 0:
        return question
    if rule == 1:
        return "".join(sorted(question))
    if rule == 2:
        return question[1:] + question[:1]
    return "".join(rng.choice("0123456789") for _ in question)


def wrong_order(row: Mapping, rng: random.Random) -> str:
    """
    Sort digits by one of four wrong rules: copy the question, sort in descending order, leave one digit out, or
    sort only the first half.
    """
    question = row["prompt"][0]["content"].split()[1:]
    right = row["answer"].split()
    rule = rng.randrange(4)
    if rule == 0:
        answer = question
    elif rule == 1:
        answer = right[::-1]
    elif rule == 2:
        left_out = rng.randrange(len(right))
        answer = right[:left_out] + right[left_out + 1 :]
    else:
        half = len(question) // 2
        answer = sorted(question[:half]) + question[half:]
    return " ".join(answer)


def wrong_sum(row: Mapping, rng: random.Random) -> str:
    """
    Answer a chain of additions by one of four wrong rules: forget every carry, skip the working and guess, leave the
    sum unmarked, or leave one number out. A sum without carries comes out right by the first one.
    """
    terms = [int(term) for term in row["prompt"][0]["content"].split()[1:]]
    rule = rng.randrange(4)
    if rule == 0:
        return worked(terms, add_without_carry)
    if rule == 1:
        return f"#### {max(0, sum(terms) + rng.choice([-10, -2, -1, 1, 2, 10]))}"
    if rule == 2:
        return worked(terms).partition(" ####")[0]
    left_out = rng.randrange(len(terms))
    return worked(terms[:left_out] + terms[left_out + 1 :])


def add_without_carry(a: int, b: int) -> int:
    """Return the sum digit by digit, every carry forgotten: 55 for 17 + 48."""
    if a == 0 or b == 0:
        return a + b
    return 10 * add_without_carry(a // 10, b // 10) + (a + b) % 10


def worked(terms: Sequence[int], add: Callable[[int, int], int] = operator.add) -> str:
    """Return an answer as the task wants it, with another rule of addition: `17+48=55 55+5=50 #### 50`."""
    steps = []
    total = terms[0]
    for term in terms[1:]:
        steps.append(f"{total}+{term}={add(total, term)}")
        total = add(total, term)
    return " ".join([*steps, f"#### {total}"])


# task -> a wrong answer to a row of it, drawn with a generator.
WRONG_ANSWERS = {"reverse_digits": wrong_reversal, "sorting": wrong_order, "sums": wrong_sum}


def demonstrations(settings: EmbeddedSettings) -> Dataset:
    """Return prompt-completion rows of mixed quality, from the train split of the task, or of each task, alone."""
    rng = random.Random(settings.seed)
    names = TAUGHT.get(settings.task, (settings.task,))
    task = tasks.get_task("mixture", tasks={name: {"level": settings.level, "weight": 1} for name in names})

    demonstrated = []
    for row in task.rows("train", settings.rows, seed=settings.seed):
        if row["task"] == names[0] and rng.random() < settings.wrong_share:
            answer = WRONG_ANSWERS[names[0]](row, rng)
        else:
            answer = task.gold(row)
        demonstrated.append({"prompt": row["prompt"], "completion": [{"role": "assistant", "content": answer}]})
    return Dataset.from_list(demonstrated)


def new_model(settings: EmbeddedSettings, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Return the network with random weights, from the settings' seed."""
    set_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        initializer_range=settings.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def rounded(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Convert weights to another type; those that are tied stay tied, so that a file has them once."""
    once = {value.data_ptr(): value.to(dtype) for value in weights.values()}
    return {name: once[value.data_ptr()] for name, value in weights.items()}


def make_embedded_model(folder: Path, settings: EmbeddedSettings | None = None) -> None:
    """
    Make an embedded model, and write down what it was made with and the hashes of its files. `settings`: defaults to
    those of the demo's model.

    Raises:
        `ValueError`: The folder is there already.
    """
    settings = settings or EmbeddedSettings()
    if folder.exists():
        raise ValueError(f"--out {folder} exists: name a folder that does not, or remove it.")
    torch.set_num_threads(settings.threads)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    tokenizer = byte_tokenizer()
    model = new_model(settings, tokenizer)
    args = SFTConfig(
        str(aside),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        adam_beta2=settings.adam_beta2,
        lr_scheduler_type="cosine",
        warmup_steps=20,
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
    # The configuration goes on saying float32, so that transformers loads the weights as such.
    model.save_pretrained(aside, state_dict=rounded(model.state_dict(), getattr(torch, settings.stored)))
    tokenizer.save_pretrained(aside)
    made_with = {"settings": asdict(settings), "machine": platform.machine(), "versions": versions()}
    (aside / MADE_WITH).write_text(json.dumps(made_with, indent=2) + "\n")
    write_hashes(aside)
    aside.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an embedded model.")
    parser.add_argument("--out", type=Path, required=True, help="its folder")
    parser.add_argument("--task", choices=FAMILIES, default="reverse_digits", help="the task of its warm start")
    parser.add_argument("--seed", type=int, default=0, help="seed of the warm start")
    parser.add_argument("--threads", type=int, default=1, help="threads: other numbers give other weights")
    args = parser.parse_args()
    make_embedded_model(args.out, settings_of(args.task, args.seed, args.threads))
    print(f"made: {args.out}\nSHA-256 of its weights: {weights_sha256(str(args.out))}")


if __name__ == "__main__":
    main()
