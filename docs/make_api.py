"""Write `docs/api.md` from the docstrings of everything that users import.

python docs/make_api.py            # write it
python docs/make_api.py --check    # exit code 1 if it is not current
"""

import argparse
import inspect
import re
import sys
from pathlib import Path

from make_reference import TRL_DOCS

import trl_prorl
from trl_prorl import errors, tasks


PAGE = Path(__file__).parent / "api.md"
COMMAND = "python docs/make_api.py"
LINK = re.compile(r"\[`~?([\w.]+)`\]")
GROUPS = {
    "Train": ("ProRLConfig", "ProRLTrainer", "task_reward", "embedded_model", "load_model"),
    "Evaluate": ("evaluate", "drift", "preflight"),
    "Beside TRL's own trainer": ("RunRecorder",),
    "Tasks": ("Task", "get_task"),
    "Reset triggers": ("ReferenceResetCallback", "Trigger", "Reason", "Periodic", "KLSpike", "Stall"),
}
NAMES = [name for names in GROUPS.values() for name in names]
OF_TASKS = GROUPS["Tasks"]
# Methods and properties that users call or override, besides those of TRL and transformers.
MEMBERS = {
    "ProRLTrainer": ("train", "request_reset", "run_dir"),
    "Task": ("rows", "verify", "reward", "gold", "answer_of", "has_answer", "verify_many", "reward_many"),
    "Trigger": ("observe_step", "observe_evaluation", "applied", "state_dict", "load_state_dict"),
}
# Signatures that Python does not show as a user writes them.
SIGNATURES = {
    "ProRLTrainer": "model, reward_funcs=None, args=None, train_dataset=None, eval_dataset=None, …, "
    "callbacks=None, …, peft_config=None, …",
    "ProRLConfig": "output_dir, *, KEY=value, …",
    "Task": "",
    "Trigger": "",
}
MORE = {
    "Task": "How to write one: [your own task](howto-task.md).",
    "ProRLConfig": f"All keys: [configuration reference](reference.md), and [TRL's]({TRL_DOCS}).",
    "ProRLTrainer": "Everything else is inherited: `evaluate`, `save_model`, `push_to_hub`, … "
    "A complete script: [train with your own script](own-script.md). [Resume](resume.md).",
    "evaluate": "What the numbers mean: [evaluation](evaluation.md).",
    "drift": "What the columns mean: [drift](evaluation.md#drift).",
    "preflight": "All checks: [preflight checks](preflight.md).",
    "Trigger": "A complete example: [your own reset trigger](trigger.md).",
}
INTRODUCTION = f"""# Python API

```python
from trl_prorl import ProRLConfig, ProRLTrainer, evaluate
from trl_prorl.tasks import get_task
```

The examples run in the order of this page. The commands (`trl-prorl train`, `passk`, `report`, …) print their options
with `--help`. The page is generated from the docstrings by `{COMMAND}`.
"""
OTHERS = """## Other modules

- `trl_prorl.tasks`: modules `generated`, `loaded` and `registry`: base classes and the table of tasks:
  [your own task](howto-task.md)
"""


def find(name: str) -> object:
    return getattr(tasks if name in OF_TASKS else trl_prorl, name)


def link_names(text: str) -> str:
    """Return a text in which [`NAME`] of this page is a link, and any other [`NAME`] is code."""

    def link(match: re.Match) -> str:
        name = match[1].rpartition(".")[2]
        anchor = {"InputError": "errors"}.get(name, name.lower())
        return f"[`{name}`](#{anchor})" if name in (*NAMES, "InputError") else f"`{name}`"

    return LINK.sub(link, text)


def section_entries(documented: object, section: str) -> list[str]:
    """Return the entries of a docstring's section that say name, type and meaning in one paragraph, a line each."""
    body = inspect.getdoc(documented).partition(f"\n{section}:\n")[2].partition("\n\n")[0]
    return [" ".join(entry.split()) for entry in re.split(r"\n(?= {4}\S)", body) if entry]


def paragraphs(documented: object) -> list[str]:
    """Return the paragraphs of a docstring before its first section, each on one line."""
    text = re.split(r"^[A-Z]\w+:$", inspect.getdoc(documented), maxsplit=1, flags=re.MULTILINE)[0]
    return [link_names(" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n")]


def signature(name: str, documented: object) -> str:
    """Return a call as a user writes it, without annotations."""
    if name in SIGNATURES:
        return f"{name}({SIGNATURES[name]})"
    parameters = inspect.signature(documented).parameters.values()
    bare = [one.replace(annotation=one.empty) for one in parameters if one.name != "self"]
    return f"{name}{inspect.Signature(bare)}"


def entry(name: str) -> list[str]:
    """Return the part of one name: what it is, its signature, arguments, members and examples."""
    documented = find(name)
    lines = [f"### `{name}`", "", "```text", signature(name, documented), "```", ""]
    for paragraph in paragraphs(documented):
        lines += [paragraph, ""]
    for section in ("Args", "Attributes"):
        pairs = [one.split(" ", 1) for one in section_entries(documented, section)]
        lines += [f"- `{argument.rstrip(':')}` {link_names(text)}" for argument, text in pairs]
        lines += [""] if pairs else []
    for section in ("Returns", "Raises"):
        for one in section_entries(documented, section):
            lines += [f"**{section}** {link_names(one)}", ""]
    lines += ["Methods and properties:", ""] if name in MEMBERS else []
    for member in MEMBERS.get(name, ()):
        found = getattr(documented, member)
        call = member if isinstance(found, property) else signature(member, found)
        lines.append(f"- `{call}`: {paragraphs(found)[0]}")
    lines += [""] if name in MEMBERS else []
    for example in re.findall(r"```python\n(.*?)```", inspect.getdoc(documented), re.DOTALL):
        lines += ["```pycon", *example.rstrip().splitlines(), "```", ""]
    return [*lines, MORE[name], ""] if name in MORE else lines


def error_table() -> list[str]:
    """Return the errors that a script may want to catch."""
    lines = ["| error | is a | meaning |", "|---|---|---|"]
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and cls.__module__ == errors.__name__:
            bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
            lines.append(f"| `{name}` | {bases} | {paragraphs(cls)[0]} |")
    return lines


def make_page() -> str:
    """
    Return the page.

    Raises:
        `ValueError`: A name that `trl_prorl` exports is in none of the groups.
    """
    missing = set(trl_prorl.__all__) - set(NAMES)
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} of trl_prorl.__all__: add it to GROUPS in {COMMAND}.")
    lines = [INTRODUCTION, "| name | purpose |", "|---|---|"]
    for group, names in GROUPS.items():
        lines.append(f"| **{group}** | |")
        for name in names:
            purpose = re.split(r"(?<=[^.]\.) |: ", paragraphs(find(name))[0])[0].rstrip(".")
            lines.append(f"| [`{name}`](#{name.lower()}) | {purpose} |")
    lines += ["| **Errors** | |", "| [`InputError`, `RunError`, …](#errors) | Errors that a script may catch |", ""]
    for group, names in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in names:
            lines += entry(name)
    lines += ["## Errors", "", "All are in `trl_prorl.errors`.", "", *error_table(), "", OTHERS]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not current")
    args = parser.parse_args(argv)
    page = make_page()
    if args.check:
        return int(PAGE.read_text() != page)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
