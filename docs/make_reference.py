"""Write `docs/reference.md`, from the keys, their docstrings, the refusals and the keys of the log files, and
`docs/supported.md`, from the lists of what is trained.

python docs/make_reference.py            # write them
python docs/make_reference.py --check    # exit code 1 if one is not current
"""

import argparse
import dataclasses
import inspect
import re
import sys
import types
import typing
import warnings
from pathlib import Path


CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # of several checkouts this one, whichever is installed

from trl import GRPOConfig  # noqa: E402

import trl_prorl  # noqa: E402
from trl_prorl import supported  # noqa: E402
from trl_prorl.keys import KEYS, TASK_KEYS, ProlongedKeys, TaskKeys  # noqa: E402
from trl_prorl.refusals import REFUSALS  # noqa: E402
from trl_prorl.run.columns import EVALUATIONS, EVENTS, METRICS, RecordKey  # noqa: E402
from trl_prorl.run.log_files import EVENT_KINDS  # noqa: E402


PAGE = Path(__file__).parent / "reference.md"
SUPPORTED_PAGE = Path(__file__).parent / "supported.md"
COMMAND = "python docs/make_reference.py"
TRL_DOCS = "https://huggingface.co/docs/trl/grpo_trainer#trl.GRPOConfig"
OURS = KEYS | TASK_KEYS
# In a docstring: the title of a group of keys, or a key with its more deeply indented description.
ENTRY = re.compile(
    r"^ *> (?P<group>.+)$|^(?P<indent> +)(?P<name>\w+) \(.+\):\n(?P<text>(?:(?P=indent) +\S.*\n|\n)+)",
    re.MULTILINE,
)

# Keys of TRL that matter most here. TRL's documentation has all of them.
TRL_KEYS = {
    "beta": "coefficient of the KL to the reference model (0: no reference model is loaded)",
    "num_iterations": "μ: how often each generation batch is used",
    "num_generations": "G: completions per prompt",
    "per_device_train_batch_size": "completions per micro-batch",
    "gradient_accumulation_steps": "micro-batches per optimizer step",
    "steps_per_generation": "micro-batches per generation batch; `null`: `gradient_accumulation_steps`",
    "max_completion_length": "maximum number of tokens of a completion; longer ones are truncated",
    "temperature": "sampling temperature",
    "epsilon": "lower clip of the ratio, and the upper one if `epsilon_high` is not set",
    "epsilon_high": "upper clip of the ratio",
    "loss_type": "how the loss is averaged over tokens",
    "scale_rewards": "what advantages are divided by",
    "use_bias_correction_kl": "multiply the KL by the importance ratio, which makes the gradient of k3 exact",
    "importance_sampling_level": "importance ratio per token or per sequence",
    "mask_truncated_completions": "exclude truncated completions from the loss",
    "learning_rate": "the LoRA recipes here use 1e-5 (0.5B model) to 1e-3 (embedded model)",
    "lr_scheduler_type": "with `constant`, a resume can change `max_steps`",
    "use_vllm": "generate with vLLM",
}
INTRODUCTION = """# Configuration reference

{list_of_keys}

- **Set a key**: `beta_old: 0.3` in a recipe, `--beta_old 0.3` on the command line (overrides the recipe),
  `ProRLConfig(beta_old=0.3)` in a script. An unknown key raises an error that suggests the nearest one.
- **More keys**: a recipe also accepts TRL's [GRPOConfig]({trl}) and ModelConfig (`model_name_or_path`, `dtype`,
  `use_peft`, `lora_r`, …). The groups *Task and data*, *Length reward* and *Thinking budget* are only for recipes.
- **Defaults**: with all keys at their defaults the training is TRL's, bit for bit, with [a few
  exceptions](compatibility.md#what-differs-from-trl).
- **Not allowed** lists combinations that raise an error before a model is loaded: one line with key, value and fix.
  A key that another key leaves without effect prints a warning, once.

This page is generated: edit the docstrings of `trl_prorl/keys.py` and `trl_prorl/refusals.py`, and run `{command}`.
"""
OTHER_LIMITS = """TRL accepts these values; trl-prorl raises an error before a model is loaded:

- a negative or infinite `beta`, and an empty `output_dir` or `resume_from_checkpoint`
{launcher}
"""


class Description(typing.NamedTuple):
    """
    What a docstring says about a key.

    Attributes:
        hint (`Any`): Its type.
        text (`str`): Its description.
        group (`str`): The title of its group.
    """

    hint: typing.Any
    text: str
    group: str


def describe_keys(cls: type) -> dict[str, Description]:
    """Return the descriptions of a dataclass's keys, in the order of its docstring."""
    hints = typing.get_type_hints(cls)
    descriptions = {}
    group = ""
    for match in ENTRY.finditer(cls.__doc__):
        name = match["name"]
        if match["group"]:
            group = match["group"]
        elif name in OURS:
            descriptions[name] = Description(hints[name], " ".join(match["text"].split()), group)
    return descriptions


DESCRIPTIONS = describe_keys(ProlongedKeys) | describe_keys(TaskKeys)


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


def with_links(text: str, key: str = "") -> str:
    """Return a text in which every key of ours, except `key`, is a link to its description, and every page, too."""

    def link(match: re.Match) -> str:
        return match[0] if match[1] == key or match[1] not in OURS else f"[{match[0]}](#{match[1]})"

    text = re.sub(r"`(\w+)(?:: [^`]*)?`", link, text)
    return re.sub(r"\bdocs/(([\w-]+)\.md)", r"[\2](\1)", text)


def find_limits() -> dict[str, list[str]]:
    """Return the lines in the docstrings of the refusals by key: the first key of ours that a line names, or `""`."""
    found: dict[str, list[str]] = {}
    for refuse in REFUSALS:
        for line in inspect.getdoc(refuse).split("\n- ")[1:]:
            key = next((name for name in re.findall(r"`(\w+)", line) if name in OURS), "")
            found.setdefault(key, []).append(" ".join(line.split()))
    return found


def key_sections() -> list[str]:
    """Return the description of every key of ours, with its limits, by group."""
    limits = find_limits()
    lines = []
    group = ""
    for name, described in DESCRIPTIONS.items():
        if described.group != group:
            group = described.group
            lines += [f"## {group}", ""]
        facts = f"*{spelt(described.hint)}, default `{yaml_value(OURS[name].default)}`.*"
        lines += [f"### `{name}`", "", f"{facts} {with_links(described.text, name)}", ""]
        need = OURS[name].needs
        if need is not None:
            named = re.sub(r"\w*_\w+|\bbeta\b", r"`\g<0>`", need.names)
            lines += [f"Acts only with {with_links(named)}.", ""]
        not_allowed = [f"- {with_links(limit, name)}" for limit in limits.get(name, [])]
        if not_allowed:
            lines += ["Not allowed:", "", *not_allowed, ""]
        elsewhere = [key for key, texts in limits.items() if key not in ("", name) and f"`{name}" in " ".join(texts)]
        if elsewhere:
            lines += [f"See also the limits of {' and '.join(f'[`{key}`](#{key})' for key in elsewhere)}.", ""]
    return lines


def list_of_keys() -> str:
    """Return a table of all keys of ours, by group, linked."""
    names_by_group: dict[str, list[str]] = {}
    for name, described in DESCRIPTIONS.items():
        names_by_group.setdefault(described.group, []).append(f"[`{name}`](#{name})")
    rows = [f"| {group} | {', '.join(names)} |" for group, names in names_by_group.items()]
    sections = ("Limits of other keys", "Keys of TRL", "metrics.jsonl", "events.jsonl", "evaluations.jsonl")
    others = ", ".join(f"[{name}](#{name.lower().replace('.', '').replace(' ', '-')})" for name in sections)
    return "\n".join(["| group | keys |", "|---|---|", *rows, f"| More | {others}, [Python API](api.md) |"])


def record_table(keys: dict[str, RecordKey]) -> list[str]:
    has_events = any(key.events for key in keys.values())
    header = ["key", "unit", "meaning", "only with"]
    if has_events:
        header.append("events")
    rows = [header, ["---"] * len(header)]
    for name, key in keys.items():
        row = [f"`{name}`", key.unit, key.meaning, key.when]
        if has_events:
            others = [kind for kind in EVENT_KINDS if kind not in key.events]
            if not others:
                row.append("every event")
            elif len(others) < len(key.events):
                row.append("every event but " + ", ".join(f"`{kind}`" for kind in others))
            else:
                row.append(", ".join(f"`{kind}`" for kind in key.events))
        rows.append(row)
    return ["| " + " | ".join(row) + " |" for row in rows]


def trl_table() -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    rows = [f"| `{name}` | `{yaml_value(defaults[name])}` | {meaning} |" for name, meaning in TRL_KEYS.items()]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


SUPPORTED = """# What is supported

Every member of these lists is trained by a test. A model that is not listed for `fast` is trained without it.

## Adapters

Full fine-tuning, and LoRA with DoRA, rsLoRA or `modules_to_save`, on models in 4 or 8 bits (bitsandbytes), too.
`init_lora_weights` is one of {initialisations}. For other adapters use TRL's own trainer.

## Models for `fast`

Causal language models are trained. `fast` serves these families (`model_type`), with the implementations of attention
(`attn_implementation`) in the table, and rotary positions (`rope_type`) of the kinds {positions}.

{families}

Models with learned positions get those of their tokens, which TRL does not pass: {learned}.

## Losses

{losses}

With `cispo` set `epsilon_high` ([ScaleRL](https://arxiv.org/abs/2510.13786): 5). If it is unset, TRL limits every
importance weight to 0.2, also without any change of the policy, and a KL acts five times as strongly.

- `importance_sampling_level`: {levels}
- `kl_estimator`: {estimators}
- `advantage_estimator`: `null` (TRL's), {advantages}

## Optimizers

An `optimizer_reset` needs one of these, or a subclass, that remembers what the [treatment](methods.md#adams-state)
changes.

{optimizers}

## Learning-rate schedules

{schedules}

## Several processes

DDP, on one machine or several. FSDP and DeepSpeed train without keys of ours.

This page is generated: edit `trl_prorl/supported.py` and run `{command}`.
"""


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(rows: list[list[str]]) -> list[list[str]]:
    """Return one row for all names (first cells) whose other cells are equal."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return [[", ".join(group), *cells] for cells, group in names.items()]


def code(names: typing.Iterable[object]) -> str:
    """Return names as code, separated by commas; a dash for none."""
    return ", ".join(f"`{name}`" for name in names) or "–"


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def make_supported_page() -> str:
    """Return the page of what is supported."""
    families = [
        [f"`{name}`", code(family.shared_prompts), code(family.compact), code(family.graphed)]
        for name, family in supported.FAMILIES.items()
    ]
    losses = [
        [f"`{name}`", supported.AGGREGATIONS[loss.aggregation], yes_or_no(loss.clipped)]
        for name, loss in supported.LOSS_TYPES.items()
    ]
    optimizers = []
    for name, optimizer in supported.OPTIMIZERS.items():
        remembered = [supported.MEMORY[part] for part in supported.MEMORY if part in optimizer.memory]
        if optimizer.first_needs:
            remembered[0] += f" (with `{optimizer.first_needs}`)"
        optimizers.append([f"`{name}`", ", ".join(remembered), yes_or_no(optimizer.grows)])
    schedules = [
        [f"`{name}`", yes_or_no(schedule.restarts), yes_or_no(schedule.is_endless)]
        for name, schedule in supported.SCHEDULES.items()
    ]
    return SUPPORTED.format(
        initialisations=code(map(repr, supported.INITIALISATIONS)),
        families=table(["`model_type`", "`pack_groups`", "`compact_generation`", "CUDA graph"], grouped(families)),
        positions=code(supported.POSITIONS),
        learned=code(supported.LEARNED_POSITIONS),
        losses=table(["`loss_type`", "weights of tokens", "has a clipped ratio (`loss_mode`)"], grouped(losses)),
        levels=code(supported.IMPORTANCE_LEVELS),
        estimators=code(supported.KL_ESTIMATORS),
        advantages=code(supported.ADVANTAGES),
        optimizers=table(["class", "remembers", "`lora_growth_every`"], grouped(optimizers)),
        schedules=table(
            ["`lr_scheduler_type`", "a reset can restart it", "a run can be made longer (with a warm-up in steps)"],
            grouped(schedules),
        ),
        command=COMMAND,
    )


def make_page() -> str:
    """Return the whole page."""
    launcher = "\n".join(f"- {limit}" for limit in find_limits()[""])
    keys = list_of_keys()
    lines = [
        *INTRODUCTION.format(list_of_keys=keys, trl=TRL_DOCS, command=COMMAND).splitlines(),
        "",
        *key_sections(),
        "## Limits of other keys",
        "",
        *OTHER_LIMITS.format(launcher=launcher).splitlines(),
        "",
        "## Keys of TRL",
        "",
        f"The most important ones. All keys: [GRPOConfig]({TRL_DOCS}).",
        "",
        *trl_table(),
        "",
        "## metrics.jsonl",
        "",
        "One JSON object per optimizer step. A missing key means not measured, never 0. Counts, tokens and times are "
        "those of that step.",
        "",
        *record_table(METRICS),
        "",
        "## events.jsonl",
        "",
        "One JSON object per event. Its kind decides which keys it has.",
        "",
        *record_table(EVENTS),
        "",
        "## evaluations.jsonl",
        "",
        "One JSON object per evaluation during training, if `eval_strategy` requests evaluations. With several "
        "evaluation sets, the names contain the set: `eval_SET_reward`.",
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
    for page, content in {PAGE: make_page(), SUPPORTED_PAGE: make_supported_page()}.items():
        if not args.check:
            page.write_text(content)
        elif page.read_text() != content:
            print(f"{page} is not current: run {COMMAND}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
