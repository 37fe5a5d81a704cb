"""Write `docs/reference.md` from the configuration's docstrings, its fields, its own refusals and the record's keys.

python docs/make_reference.py            # write it
python docs/make_reference.py --check    # exit code 1 if it is not current
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import types
import typing
import warnings
from dataclasses import dataclass
from pathlib import Path


CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # of several checkouts this one, whichever is installed

from trl import GRPOConfig, ScriptArguments  # noqa: E402

import trl_prorl  # noqa: E402
from trl_prorl import (  # noqa: E402
    KLSpike,
    Periodic,
    ProRLConfig,
    Reason,
    ReferenceResetCallback,
    Stall,
    Trigger,
)
from trl_prorl.keys import KEYS, TASK_KEYS  # noqa: E402
from trl_prorl.record.keys import EVALUATIONS, EVENTS, METRICS, RecordKey  # noqa: E402
from trl_prorl.refusals import REFUSALS  # noqa: E402
from trl_prorl.train import TaskArguments  # noqa: E402


PAGE = Path(__file__).parent / "reference.md"
COMMAND = "python docs/make_reference.py"
TRL_DOCS = "https://huggingface.co/docs/trl/grpo_trainer#trl.GRPOConfig"
SECTIONS = ("Args:", "Parameters:")
# A name with its type, as in "alpha (`float`, *optional*, defaults to `0.1`)"; one line may hold several.
ENTRY = re.compile(r"(\w+) \(((?:`[^`]*`|[^`()])*)\)")
DEFAULT = re.compile(r"defaults to `([^`]*)`")
LINK = re.compile(r"\[`(~?)([\w.]+)`\]")

# TRL's own keys that matter most here; everything else is in its documentation.
TRL_KEYS = {
    "beta": "coefficient of the KL to the reference: the control, A and C",
    "num_iterations": "μ, how often a generation batch is used",
    "num_generations": "G, completions of a prompt",
    "per_device_train_batch_size": "completions of a micro-batch",
    "gradient_accumulation_steps": "micro-batches of an optimizer step",
    "steps_per_generation": "micro-batches of a generation batch; by default as many as are accumulated",
    "max_completion_length": "tokens after which a completion is cut",
    "temperature": "of sampling",
    "epsilon": "clip of the ratio below, and above where `epsilon_high` is not set",
    "epsilon_high": "clip of the ratio above",
    "loss_type": "how the loss is averaged over tokens",
    "scale_rewards": "what advantages are divided by",
    "use_bias_correction_kl": "multiply the KL by the importance ratio: with k3 its gradient is exact",
    "importance_sampling_level": "ratio of a token or of a sequence",
    "mask_truncated_completions": "leave completions that were cut out of the loss",
    "learning_rate": "the LoRA recipes here have 1e-5 (0.5B) and 5e-4 (embedded model)",
    "lr_scheduler_type": "`constant` lets `max_steps` change at a resume",
    "use_vllm": "generate with vLLM",
}


INTRODUCTION = [
    "# Reference",
    "",
    f"Made by `{COMMAND}` from the docstrings; a test fails if it is not current. Change those, not this page.",
    "",
    "- [Keys of ProRLConfig](#keys-of-prorlconfig)",
    "- [What is refused](#what-is-refused)",
    "- [Keys of a recipe's task](#keys-of-a-recipes-task)",
    "- [Triggers](#triggers)",
    "- [TRL's keys that matter most](#trls-keys-that-matter-most)",
    "- [metrics.jsonl](#metricsjsonl)",
    "- [events.jsonl](#eventsjsonl)",
    "",
    "A recipe holds these keys, those of TRL's `ModelConfig` (`model_name_or_path`, `dtype`, `use_peft`, "
    "`lora_r`, …), and nothing else: an unknown key is an error that names the nearest. On the command line each "
    "is `--key value`, which wins over the recipe.",
    "",
]


@dataclass
class Entry:
    """
    One key as a docstring describes it.

    Args:
        name (`str`), header (`str`):
            The key, and what its parentheses hold.
        group (`str`):
            The heading that it stands under.
        text (`str`):
            The description, on one line.
    """

    name: str
    header: str
    group: str
    text: str

    @property
    def default(self) -> object:
        """The default that the docstring names; `None` where it names none."""
        found = DEFAULT.search(self.header)
        return ast.literal_eval(found[1]) if found else None

    @property
    def type(self) -> str:
        return self.header.partition(", *optional*")[0].replace("`", "")


def entries(docstring: str) -> dict[str, Entry]:
    """
    Return the entries of a Hugging Face style docstring, by name.

    Args:
        docstring (`str`):
            With a section `Args:` or `Parameters:`, whose entries are indented by four and their descriptions by
            eight; lines that begin with `>` are headings.
    """
    lines = iter(docstring.expandtabs().splitlines())
    margin = next(len(line) - len(line.lstrip()) for line in lines if line.strip() in SECTIONS)
    found: dict[str, Entry] = {}
    current: list[Entry] = []
    group = ""
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip()) - margin
        if not text:
            continue
        if indent <= 0:
            break
        if indent == 4 and text.startswith(">"):
            group = text.lstrip("> ")
        elif indent == 4:
            current = [Entry(name, header, group, "") for name, header in ENTRY.findall(text)]
            found |= {entry.name: entry for entry in current}
        else:
            for entry in current:
                entry.text = f"{entry.text} {text}".strip()
    return found


def spelt(hint: object) -> str:
    """Return a type as a recipe's author would write it: `float or null`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if is_union else (hint,)
    return " or ".join("null" if option is type(None) else option.__name__ for option in options)


def yaml_value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value.replace("\n", "\\n")
        return f'"{text}"' if text != value or value in ("off", "on") else value
    return str(value)


def linked(text: str) -> str:
    """`[`~trl_prorl.objective.kl`]` as a link to the file, other references as code."""

    def link(match: re.Match) -> str:
        short, name = match.groups()
        shown = name.rpartition(".")[2] if short else name
        path = Path(__file__).parent.parent / (name.replace(".", "/") + ".py")
        return f"[`{shown}`](../{name.replace('.', '/')}.py)" if path.is_file() else f"`{shown}`"

    return LINK.sub(link, text)


def refusals() -> list[str]:
    """Return what the configuration refuses, from the docstrings: a heading and its entries for each function."""
    lines = []
    for refuse in REFUSALS:
        lines += [*inspect.getdoc(refuse).splitlines(), ""]
    return lines


def key_section(cls: type, parent: type, level: int) -> list[str]:
    """
    Return the keys that `cls` adds to `parent`, a heading each, under the headings of its docstring.

    Raises:
        `ValueError`: the docstring leaves one out.
    """
    hints = typing.get_type_hints(cls)
    described = entries(cls.__doc__)
    ours = {field.name: field for field in dataclasses.fields(cls)}
    for field in dataclasses.fields(parent):
        ours.pop(field.name, None)
    missing = ours.keys() - described.keys()
    if missing:
        raise ValueError(f"{cls.__name__} does not describe {', '.join(sorted(missing))}: add it to the docstring.")
    lines = []
    group = ""
    for name, entry in described.items():
        if name not in ours:
            continue
        field = ours[name]
        if entry.group != group:
            group = entry.group
            lines += [f"{'#' * (level - 1)} {group}", ""]
        facts = f"{spelt(hints[name])}, default `{yaml_value(field.default)}`"
        lines += [f"{'#' * level} `{name}`", "", f"*{facts}.* {linked(entry.text)}", ""]
        need = (KEYS | TASK_KEYS)[name].needs
        if need is not None:
            lines += [f"Needs {need.words}.", ""]
    return lines


def record_table(keys: dict[str, RecordKey]) -> list[str]:
    has_events = any(key.events or key.not_events is not None for key in keys.values())
    header = ["key", "unit", "meaning", "only with"]
    if has_events:
        header.append("events")
    rows = [header, ["---"] * len(header)]
    for name, key in keys.items():
        row = [f"`{name}`", key.unit, key.meaning, key.when]
        if has_events:
            named = ", ".join(f"`{event}`" for event in key.events or key.not_events or ())
            if key.not_events is not None:
                named = f"every event but {named}" if named else "every event"
            row.append(named)
        rows.append(row)
    return ["| " + " | ".join(row) + " |" for row in rows]


def trl_table() -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    rows = [f"| `{name}` | `{yaml_value(defaults[name])}` | {meaning} |" for name, meaning in TRL_KEYS.items()]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


def first_paragraph(documented: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    paragraph = inspect.getdoc(documented).partition("\n\n")[0]
    return linked(" ".join(paragraph.split()))


def section_entries(documented: object, section: str) -> list[str]:
    """Return the entries of a docstring's section that say name, type and meaning in one paragraph, a line each."""
    body = inspect.getdoc(documented).partition(f"\n{section}:\n")[2].partition("\n\n")[0]
    return [" ".join(entry.split()) for entry in re.split(r"\n(?= {4}\S)", body) if entry]


def short_entries(cls: type, section: str) -> list[str]:
    """Return the entries of a docstring's section as a list."""
    pairs = (entry.split(" ", 1) for entry in section_entries(cls, section))
    return [f"- `{name}` {linked(text)}" for name, text in pairs]


def trigger_section() -> list[str]:
    """Return what a trigger of one's own is made of, and the triggers that come with the package."""
    lines = []
    for cls in (Trigger, Reason, ReferenceResetCallback, Periodic, KLSpike, Stall):
        lines += [f"### `{cls.__name__}`", "", first_paragraph(cls), ""]
        section = "Attributes" if cls is Trigger else "Args"
        lines += short_entries(cls, section)
        if cls is Trigger:
            methods = ("observe_step", "observe_evaluation", "applied", "state_dict", "load_state_dict")
            lines += [f"- `{name}()`: {first_paragraph(getattr(cls, name))}" for name in methods]
        lines.append("")
    return lines


def make_page() -> str:
    """Return the whole page."""
    lines = [
        *INTRODUCTION,
        "## Keys of ProRLConfig",
        "",
        "With all of them at their defaults the trainer is TRL's, bit for bit.",
        "",
        *key_section(ProRLConfig, GRPOConfig, 4),
        "## What is refused",
        "",
        "These combinations end in one line that names the key, the value and the cure, and in exit code 2, before a "
        "model is loaded. So does a key without the one that it needs.",
        "",
        *refusals(),
        "What depends on the model, the optimizer or the machine is refused when the trainer is made: "
        "[troubleshooting](troubleshooting.md).",
        "",
        "## Keys of a recipe's task",
        "",
        "`dataset_name` (TRL's) is the `path` of a task that reads files. [Tasks](tasks.md) says what there is.",
        "",
        *key_section(TaskArguments, ScriptArguments, 3),
        "## Triggers",
        "",
        "All are imported from `trl_prorl`. [How to write one](trigger.md).",
        "",
        *trigger_section(),
        "## TRL's keys that matter most",
        "",
        f"All of them: [GRPOConfig]({TRL_DOCS}).",
        "",
        *trl_table(),
        "",
        "## metrics.jsonl",
        "",
        "One object per optimizer step. A missing key means not measured, never 0. Counts, tokens and times are of "
        "that step alone.",
        "",
        *record_table(METRICS),
        "",
        "## events.jsonl",
        "",
        "One object per event; its kind decides which keys it has.",
        "",
        *record_table(EVENTS),
        "",
        "## evaluations.jsonl",
        "",
        "One object per evaluation during training. The file is there if `eval_strategy` asks for evaluations. With "
        "several evaluation sets, pass@K and the loss have the set in their names: `eval_SET_pass@K`.",
        "",
        *record_table(EVALUATIONS),
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not current")
    args = parser.parse_args(argv)
    package = Path(trl_prorl.__file__).resolve()
    if CHECKOUT not in package.parents:  # it was imported before this file
        print(f"error: {PAGE} would describe {package.parent}: run {COMMAND} in a process of its own", file=sys.stderr)
        return 2
    page = make_page()
    if args.check:
        if PAGE.read_text() == page:
            return 0
        print(f"{PAGE} is not current: run {COMMAND}", file=sys.stderr)
        return 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
