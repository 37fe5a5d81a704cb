"""
Whole trainings on the pretended device, and a table of what each asks of it.

    python tests/device/whole_steps.py                  # every case, as a table
    python tests/device/whole_steps.py --write          # the same into counts.csv, for `gpu-check --predict`
    python tests/device/whole_steps.py --where "A"      # where the host waits in the cases of one arm

A case trains four steps: two generation batches, each used twice, each step two micro-batches of 8 completions of 6
tokens. Its model has two layers of 32, so what counts are launches and waits; bytes show where something is copied.

The cases named `recipe` train two steps as the recipes for GSM8K do, an eighth as long, at two depths and with two
vocabularies. From their differences `eval/gpucheck/predictions.py` computes what a model of any depth asks.
"""

import argparse
import csv
import functools
import io
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path


HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
os.environ["ACCELERATE_TORCH_DEVICE"] = "pretend:0"  # read by accelerate

import torch  # noqa: E402
import transformers.training_args  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from pretend import NAME, generator, work  # noqa: E402
from tiny_run import LORA, SETTINGS, vowels  # noqa: E402
from transformers import (  # noqa: E402
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    set_seed,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import trl_prorl.refusals  # noqa: E402
from trl_prorl import ProRLConfig, ProRLTrainer  # noqa: E402
from trl_prorl.embedded.making import byte_tokenizer  # noqa: E402
from trl_prorl.eval.gpucheck.counts import DEPTHS, MORE_TOKENS, RECIPE_MODEL  # noqa: E402
from trl_prorl.scoring import prefix_attention  # noqa: E402


ORIGINAL_FORWARD = Qwen2Model.forward
TABLE = HERE / "counts.csv"
VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate")

KL = {"beta": 0.1}
RESETS = {"beta": 0.1, "ref_reset_every": 2}
FAST = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {
    "TRL, plain": (GRPOTrainer, {}),
    "TRL, control": (GRPOTrainer, KL),
    "plain, not accelerated": (ProRLTrainer, {}),
    "plain": (ProRLTrainer, FAST),
    "control": (ProRLTrainer, KL | FAST),
    "A": (ProRLTrainer, RESETS | FAST),
    "A, padded": (ProRLTrainer, RESETS | FAST | {"pack_groups": "off"}),
    "A, TRL's sampling": (ProRLTrainer, RESETS | FAST | {"compact_generation": "off"}),
    "B": (ProRLTrainer, {"beta_old": 0.1} | FAST),
    "C hard": (ProRLTrainer, RESETS | FAST | {"optimizer_reset": "hard"}),
}
EVERY = {
    **{model: tuple(ARMS) for model in ("LoRA bf16", "full bf16", "LoRA fp32", "full fp32")},
    "LoRA bf16, 4 layers": ("TRL, control", "plain", "A"),  # less the one with two: what two layers ask
    **{f"recipe, {layers} layers": ("TRL, plain", "TRL, control", "plain", "control", "A", "B") for layers in DEPTHS},
    f"recipe, 2 layers, {MORE_TOKENS} tokens more": ("TRL, plain", "plain"),
}
EIGHTH = 8
RECIPE = {
    "bf16": True,
    "gradient_checkpointing": True,
    "max_completion_length": 512 // EIGHTH,
    "max_steps": 2,  # one batch: for the next, the policy itself might be sampled, to be compared with its copy
    "model_init_kwargs": {"dtype": "bfloat16"},
}
RECIPE_LORA = LORA | {"target_modules": "all-linear"}
LONGER = "token, one longer"  # what a token asks, less what the one before it asked
SCORING = "scoring"  # of a batch, once: two forwards
STAGES = (
    *("making", "token", LONGER, "token, rows end", "batch", SCORING),
    *("micro-batch, first", "micro-batch, later", "step", "reset"),
)
KINDS = ("value", "size", "to host", "to device", "synchronize")
COLUMNS = ("waits", "our waits", *KINDS, "launches", "our launches", "bytes")


# --------------------------------------------------------------------------------- what stands in for a GPU


class LikeCuda:
    """What the stage timer takes for a GPU, so that it synchronises as it does there."""

    type = "cuda"


class Event:
    """Stands in for `torch.cuda.Event`."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        pass

    def query(self):
        return True

    def synchronize(self):
        work.wait("synchronize")

    def elapsed_time(self, other):
        return 0.0


def stand_in_for_gpu() -> None:
    """Let what asks for CUDA by name find the pretended device."""
    torch.cuda.synchronize = lambda device=None: work.wait("synchronize")
    torch.cuda.current_stream = lambda device=None: None
    torch.cuda.Event = Event
    torch.random.fork_rng = functools.partial(torch.random.fork_rng, device_type=NAME)
    for module in (transformers.training_args, trl_prorl.refusals):
        module.is_torch_bf16_gpu_available = lambda: True
    # transformers saves the random state of devices that it knows.
    save = Trainer._save_rng_state
    load = Trainer._load_rng_state

    def save_both(self, output_dir):
        save(self, output_dir)
        torch.save(generator.get_state(), Path(output_dir, "pretend_rng_state.pth"))

    def load_both(self, checkpoint):
        load(self, checkpoint)
        if checkpoint is not None:
            generator.set_state(torch.load(Path(checkpoint, "pretend_rng_state.pth")))

    Trainer._save_rng_state = save_both
    Trainer._load_rng_state = load_both


# --------------------------------------------------------------------------------------------- a training


def save_model(folder: Path, end_factor: float, **settings) -> str:
    """
    Save a tiny model with its tokenizer, and return its path. The logit of the token that ends a completion is
    multiplied by `end_factor`; with 0 the others leave it no probability. `settings` are of its configuration.
    """
    tokenizer = byte_tokenizer()
    set_seed(3)
    defaults = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,  # heads in groups, as a Qwen has
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**{**defaults, **settings}))
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= end_factor
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)
    return str(folder)


def make_trainer(cls, model: str, out: Path, lora: dict | None = LORA, questions=None, **keys):
    """Make a trainer of the tests' size; what it asks of the device before the first step counts as `making`."""
    defaults = {
        "output_dir": str(out),
        "max_steps": 4,
        "num_iterations": 2,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        **SETTINGS,
    }
    texts = [f"say {i * 37 % 101}" + "!" * (i % 3) for i in range(16)]
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts]})
    config = ProRLConfig if issubclass(cls, ProRLTrainer) else GRPOConfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(
            model=model,
            args=config(**{**defaults, **keys}),
            reward_funcs=vowels,
            train_dataset=rows,
            eval_dataset=questions,
            processing_class=AutoTokenizer.from_pretrained(model),
            peft_config=LoraConfig(**lora) if lora is not None else None,
        )


# --------------------------------------------------------------------------------------------- its stages


class Stages:
    """
    Divides the work of a training by the methods during which it was asked for.

    Attributes:
        seen (`dict[str, list[Counter]]`): For each stage what each of its occurrences asked, without what belongs to a
            stage inside it. What no other stage has is a step's.
    """

    def __init__(self, trainer, watches_scoring: bool = False):
        self.seen = {name: [] for name in STAGES}
        self._open = []
        self._last = work.read()
        self._rows = 0
        self._token_since = None
        self._pass = 0
        self._watch(trainer)
        if watches_scoring:
            self._watch_scoring(trainer)

    def _watch(self, trainer) -> None:
        self._wrap(trainer, "_prepare_inputs", lambda: "batch")
        self._wrap(trainer, "training_step", self._name_micro_batch)
        if hasattr(trainer, "resets"):
            self._wrap(trainer.resets, "boundary", lambda: "reset")
            trainer.meter.timer.device = LikeCuda()
        self._watch_forwards()
        trainer.add_callback(_AtStepBegin(self._end_step))

    def _watch_scoring(self, trainer) -> None:
        """Watch the scoring of a whole batch, for which TRL calls what it calls for a micro-batch, too."""
        if hasattr(trainer, "resets"):
            self._wrap(trainer, "_score", lambda: SCORING)
        else:
            of_batch = lambda: SCORING if self._open[-1][0] == "batch" else None  # noqa: E731
            self._wrap(trainer, "_get_per_token_logps_and_entropies", of_batch)

    def _watch_forwards(self) -> None:
        """Watch the class: with LoRA a merged copy of the model is sampled."""
        forward = ORIGINAL_FORWARD

        @functools.wraps(forward)
        def watched(backbone, *args, **kwargs):
            self._see_forward(args, kwargs)
            return forward(backbone, *args, **kwargs)

        Qwen2Model.forward = watched

    def _wrap(self, owner, name: str, stage) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def wrapped(*args, **kwargs):
            name = stage()
            if name is None:
                return method(*args, **kwargs)
            with self._stage(name):
                return method(*args, **kwargs)

        setattr(owner, name, wrapped)

    def _name_micro_batch(self) -> str:
        self._pass += 1
        return "micro-batch, first" if (self._pass - 1) % 4 < 2 else "micro-batch, later"

    @contextmanager
    def _stage(self, name: str):
        self._settle()
        self._open.append([name, Counter()])
        yield
        self._settle()
        name, asked = self._open.pop()
        self._token_since = None
        if name == "batch" and (self._pass - 1) % 4 > 0:  # it only hands out what was sampled before
            self._open[-1][1].update(asked)
            return
        self.seen[name].append(asked)

    def _settle(self) -> Counter:
        """Give what was asked since the last change to the stage on top."""
        now = work.read()
        asked = Counter({key: now[key] - self._last[key] for key in now})
        self._last = now
        if not self._open:
            self._open.append(["step", Counter()])
        self._open[-1][1].update(asked)
        return asked

    def _see_forward(self, args, kwargs) -> None:
        """Between two forwards of a decoding, which take one token of each row, lies the work of a token."""
        if kwargs.get("use_cache") is False:
            self._token_since = None
            return
        asked = self._settle()
        states = next(kwargs[name] for name in ("input_ids", "inputs_embeds") if kwargs.get(name) is not None)
        rows, width = states.shape[:2]
        if width == 1 and self._token_since == "token":
            self.seen["token" if rows == self._rows else "token, rows end"].append(asked)
            self._open[-1][1].subtract(asked)
        self._rows = rows
        self._token_since = "token" if width == 1 else None

    def _end_step(self) -> None:
        """End the step before, which has been logged and saved by now."""
        self._settle()
        ((_, asked),) = self._open
        self._open.clear()
        if self._pass > 0:
            self.seen["step"].append(asked)


class _AtStepBegin(TrainerCallback):
    def __init__(self, act):
        self.act = act

    def on_step_begin(self, args, state, control, **kwargs):
        self.act()


# ------------------------------------------------------------------------------------------------ the table


class Case:
    """
    Holds how the model and the training of a case differ from the defaults.

    Attributes:
        of_recipe (`bool`): Whether it trains as a recipe does.
        settings (`dict`): Of the model.
        lora (`dict`, *optional*): Of the adapter; `None` in full fine-tuning.
        keys (`dict`): Of the training.
    """

    def __init__(self, model: str):
        self.of_recipe = model.startswith("recipe")
        depth = re.search(r"(\d+) layers", model)
        self.settings = {"num_hidden_layers": int(depth[1]) if depth else 2}
        self.lora = LORA if "LoRA" in model else None
        self.keys = {"bf16": "bf16" in model}
        if self.of_recipe:
            self.settings |= RECIPE_MODEL
            if "tokens more" in model:
                self.settings["vocab_size"] += MORE_TOKENS
            self.lora = RECIPE_LORA
            self.keys = RECIPE

    @contextmanager
    def blocks(self):
        """Let a completion have as many blocks of queries, while this lasts, as one of the recipe has."""
        whole = prefix_attention.QUERY_BLOCK
        if self.of_recipe:
            prefix_attention.QUERY_BLOCK = whole // EIGHTH
        yield
        prefix_attention.QUERY_BLOCK = whole


def measure(arm: str, model: str, folder: Path) -> tuple[dict[str, Counter], Counter]:
    """Train a case. Returns for each of its stages one occurrence, the last, and the places where the host waits."""
    cls, keys = ARMS[arm]
    case = Case(model)
    asked = {}
    # No completion ends before its last token, so that all cases generate as much. Some do in a second training.
    for end_factor in (0.0, 2.0) if arm == "plain" and not case.of_recipe else (0.0,):
        path = save_model(folder / "model", end_factor, **case.settings)
        work.clear()
        trainer = make_trainer(cls, path, folder / "run", lora=case.lora, **case.keys, **keys)
        making = work.read()
        work.clear()
        seen = Stages(trainer, watches_scoring=case.of_recipe).seen
        with case.blocks():
            trainer.train()
        seen["making"] = [making]
        if case.of_recipe:
            seen["step"].clear()  # of the first, in which the optimizer makes its state
            seen["reset"].clear()  # nothing is due yet
            if seen["token, rows end"]:
                raise RuntimeError(f"{model}, {arm}: a completion has ended early, and the counts are of fewer rows")
            *_, before, last = seen["token"]
            seen[LONGER] = [Counter({key: last[key] - before[key] for key in last})]
        for stage in STAGES:
            if seen[stage] and (end_factor == 0.0 or stage == "token, rows end"):
                asked[stage] = seen[stage][-1]
        if end_factor == 0.0:
            places = work.places
    return asked, places


def tabulate(cases: dict[str, tuple[str, ...]], places: Counter | None = None) -> list[dict[str, str]]:
    """Measure the arms of each model, one row for each stage that asks for anything."""
    rows = []
    for model, arms in cases.items():
        for arm in arms:
            with tempfile.TemporaryDirectory() as folder:
                asked, waits = measure(arm, model, Path(folder))
            if places is not None:
                places.update(waits)
            for stage in STAGES:
                counts = asked.get(stage, Counter())
                if counts.total():
                    numbers = {column: str(counts[column]) for column in COLUMNS}
                    rows.append({"model": model, "arm": arm, "stage": stage, **numbers})
    return rows


def versions() -> str:
    """Name the versions on which the counts depend."""
    return "# " + " ".join(f"{name}=={version(name)}" for name in VERSIONS)


def write_table(rows: list[dict[str, str]], path: Path) -> None:
    """Write a table, below a line with the versions of what was counted."""
    text = io.StringIO()
    text.write(versions() + "\n")
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())


def show(rows: list[dict[str, str]]) -> None:
    """Print a table in columns."""
    names = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
    for row in ({name: name for name in names}, *rows):
        print("  ".join(row[name].rjust(width) for name, width in zip(names, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write every case into {TABLE.name}")
    parser.add_argument("--out", type=Path, help="write the cases into this file")
    parser.add_argument(
        "--model", help="count another model, such as 'recipe, 3 layers', with TRL's trainer and with A"
    )
    parser.add_argument("--where", metavar="ARM", help="print where the host waits in one arm, LoRA in bf16")
    options = parser.parse_args()
    stand_in_for_gpu()
    if options.where:
        places = Counter()
        show(tabulate({"LoRA bf16": (options.where,)}, places))
        for (kind, place), count in places.most_common():
            print(f"{count:4} {kind:12} {place}")
        return
    rows = tabulate({options.model: ("TRL, control", "A")} if options.model else EVERY)
    show(rows)
    path = TABLE if options.write else options.out
    if path is not None:
        write_table(rows, path)


if __name__ == "__main__":
    main()
