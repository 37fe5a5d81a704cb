"""Every sentence of a model card, in the order of the card. `model_card.md.jinja` holds its headings."""

from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from ..embedded.shipped import SMOLLM2
from ..record.base_model import BaseModel
from ..record.keys import ELASTIC, GROWTH
from ..record.started import evaluation_of, plugin_options
from ..variants import DIFFERENT_OBJECTIVE, without_reset
from .record import Record, base_of, greedy_of, sizes


RESETS_SHOWN = 50

# GRPO's own citation comes from TRL.
PRORL_CITATION = """\
@article{liu2025prorl,
    title        = {{ProRL: Prolonged Reinforcement Learning Expands Reasoning Boundaries in Large Language Models}},
    author       = {Mingjie Liu and Shizhe Diao and Ximing Lu and Jian Hu and Xin Dong and Yejin Choi and Jan Kautz and
                    Yi Dong},
    year         = 2025,
    eprint       = {arXiv:2505.24864},
}"""
TRL_CITATION = """\
@software{vonwerra2020trl,
    title        = {{TRL: Transformers Reinforcement Learning}},
    author       = {Leandro von Werra and Younes Belkada and Lewis Tunstall and Edward Beeching and Tristan Thrush and
                    Nathan Lambert and Shengyi Huang and Kashif Rasul and Quentin Gallouédec},
    license      = {Apache-2.0},
    url          = {https://github.com/huggingface/trl},
    year         = {2020},
}"""
CITATIONS = "\n\n".join([PRORL_CITATION, GRPOTrainer._paper["citation"], TRL_CITATION])
SOURCES = (
    "Prolonged training with resets of the reference is [ProRL](https://arxiv.org/abs/2505.24864); the algorithm is "
    "GRPO, from\n[DeepSeekMath](https://arxiv.org/abs/2402.03300); the trainer is built on "
    "[TRL](https://github.com/huggingface/trl)."
)


def summary(record: Record, adapter: bool) -> str:
    what = "A LoRA adapter" if adapter else "A language model"
    steps = "an unknown number of" if record.steps is None else record.steps
    task = _task(record)
    return (
        f"{what}, trained with trl-prorl (prolonged GRPO on top of [TRL](https://github.com/huggingface/trl)) for "
        f"{steps} optimizer steps{f' on the task {task}' if task else ''}."
    )


def _task(record: Record) -> str | None:
    task, level = record.config.get("task"), record.config.get("task_level")
    if task is None:
        return None
    return f"`{task}`" + (f" (level {level})" if level is not None else "")


def base_model(base: BaseModel | None) -> str:
    if base is None:
        return "Base model: the record does not name it."
    if base.hub_id:
        return f"Base model: [{base.hub_id}](https://huggingface.co/{base.hub_id})."
    if base.is_embedded:
        where = "`trl-prorl smollm2` installs" if base.name == SMOLLM2 else "comes with trl-prorl"
        return f"Base model: `{base.name}`, which {where}. It is not on the Hub.{_hash_text(base)}"
    origin = ""
    if base.origin:
        origin = f", which says that it was made from [{base.origin}](https://huggingface.co/{base.origin})"
    return f"Base model: `{base.short_name}`, a local folder{origin}. It is not on the Hub.{_hash_text(base)}"


def _hash_text(base: BaseModel) -> str:
    return f" SHA-256 of its weights: `{base.sha256}`." if base.sha256 else ""


def variant(record: Record) -> str:
    known = record.known_variant
    if known is None:
        return "the record does not say which."
    applied = None if record.events is None else len(record.resets)
    told = without_reset(known.name, record.config, applied, record.steps)
    more = [f"{known.name} {told}."] * bool(told) + [DIFFERENT_OBJECTIVE] * known.different_objective
    return " ".join([f"{known.description}.", *more])


def resets(record: Record) -> str:
    if record.events is None:
        return "The record has no events, so which resets were applied is not known."
    if not record.resets:
        return "No reset was applied."
    rows = []
    for event in record.resets[:RESETS_SHOWN]:
        kl = event.get("kl_before")
        optimizer = event.get("optimizer_reset")
        if "alpha" in event:
            optimizer = f"{optimizer}, α = {event['alpha']}"
        rows.append(
            [
                str(event.get("step_requested") or "–"),
                str(event["step_applied"]),
                str(event.get("reason", "–")),
                "Elastic Reset" if event["event"] == ELASTIC else str(optimizer),
                f"{kl:.4g}" if isinstance(kl, float) and kl == kl else "–",
            ]
        )
    header = ["requested at step", "applied at step", "reason", "optimizer", "KL to the reference before"]
    more = len(record.resets) - len(rows)
    notes = [f"And {more} more, see `events.jsonl`."] if more else []
    return "\n\n".join([f"Resets applied: {len(record.resets)}.", _table(header, rows), *notes])


def results(record: Record, run_dir: Path) -> str:
    command = f" {evaluation_of(record.config, record.env, run_dir)} evaluates "
    passk = record.passk
    if passk is None:
        return f"Not evaluated yet.{command}it; `trl-prorl push` then updates this card."
    if not record.evaluated:
        return (
            f"The weights here are those of step {record.steps}; the last evaluation is of step {passk['step']}, so "
            f"its numbers are left out.{command}them."
        )
    level = "" if passk.get("level") is None else f", level {passk['level']}"
    lines = [
        f"Held-out pass@k on `{passk['task']}`{level}: {passk['prompts']} prompts of the split `{passk['split']}`, "
        f"{passk['n']} samples each at temperature {passk['temperature']:g}, seed {passk['seed']}. In brackets: 95 % "
        "bootstrap intervals over prompts, of the gain paired by prompt. Base is the policy as the run began.",
        _passk_table(passk),
    ]
    for name, other in (passk.get("others") or {}).items():
        lines += [f"On `{name}`, which was not trained ({other['prompts']} prompts):", _passk_table(other)]
    return "\n\n".join(lines)


def _passk_table(part: dict[str, Any]) -> str:
    rows = []
    for k in sizes(part):
        sides = [[part[side][f"pass@{k}"], *part[side][f"interval@{k}"]] for side in ("base", "trained")]
        gain = part.get("gain", {}).get(f"pass@{k}")
        rows.append([f"pass@{k}", *(_with_interval(side, ".3f") for side in sides), _with_interval(gain, "+.3f")])
    if greedy := greedy_of(part):
        sides = [[greedy[side]["accuracy"], *greedy[side]["interval"]] for side in ("base", "trained")]
        gain = greedy.get("gain")
        rows.append(["greedy", *(_with_interval(side, ".3f") for side in sides), _with_interval(gain, "+.3f")])
    return _table(["", "base", "trained", "gain"], rows)


def usage(source: str, base: BaseModel | None, adapter: bool) -> str:
    """Python that loads the model and generates, an adapter merged into its base."""
    ask = '[{"role": "user", "content": "…"}]'
    if not adapter:
        return (
            "from transformers import pipeline\n\n"
            f'generator = pipeline("text-generation", model="{source}")\n'
            f'print(generator({ask})[0]["generated_text"][-1]["content"])'
        )
    where, more = f'"{base.hub_id or base.name}"' if base else '"BASE"', ""
    if base is not None and base.is_embedded:
        where, more = f"embedded_model({where})", "from trl_prorl.embedded.shipped import embedded_model\n"
    return (
        "from peft import PeftModel\n"
        f"from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline\n{more}\n"
        f"base = AutoModelForCausalLM.from_pretrained({where})\n"
        f'model = PeftModel.from_pretrained(base, "{source}").merge_and_unload()\n'
        f'generator = pipeline("text-generation", model=model, tokenizer=AutoTokenizer.from_pretrained("{source}"))\n'
        f'print(generator({ask})[0]["generated_text"][-1]["content"])'
    )


def usage_note(base: BaseModel | None, adapter: bool) -> str:
    if not adapter or base is None or base.hub_id or base.is_embedded:
        return ""
    return f"`{base.name}` is where the base model was when this was trained; put your own path there."


def training(record: Record) -> str:
    env, lines = record.env, []
    if not env:
        return "The record does not say on what it was trained."
    hardware = env.get("hardware") or {}
    machine = hardware.get("gpu") or f"{hardware.get('cpus', '?')} CPU cores ({hardware.get('machine', '?')})"
    lines.append(f"Trained on {machine}; seed {env.get('seed')}.")
    if env.get("trainable_parameters") is not None:
        of_all = f" of {env['parameters']:,}" if env.get("parameters") is not None else ""
        lines.append(f"{env['trainable_parameters']:,}{of_all} parameters were trained.")
    resumes = [str(event["step_applied"]) for event in record.events or [] if event.get("event") == "resume"]
    if resumes:
        lines.append(f"The run was resumed at step {', '.join(resumes)}.")
    if growths := [event for event in record.events or [] if event.get("event") == GROWTH]:
        told = ", ".join(f"to {event['rank']} at step {event['step_applied']}" for event in growths)
        lines.append(f"The adapter's rank grew from {growths[0]['rank_before']} {told}.")
    return " ".join(lines)


def reproduce(record: Record) -> str:
    if not record.config:
        return "There is no recipe in the record."
    commit = record.env.get("git_commit")
    version = (record.env.get("versions") or {}).get("trl-prorl")
    checkout = f"commit `{commit}`" if commit else f"version {version}" if version else "an unknown version"
    if "task" not in record.config:
        started = f"; it was started by `{record.env['command']}`" if record.env.get("command") else ""
        return (
            f"`config.yaml` holds the arguments of `ProRLTrainer` (trl-prorl, {checkout}); data and rewards came from "
            f"a script of its own, which is not part of the record{started}."
        )
    # Any launcher trains any recipe: `config.yaml` decides.
    script = record.known_variant.launcher if record.known_variant else "grpo_variantA.py"
    folder = "runs/again"
    plugins = plugin_options(record.env)
    train = f"python recipes/{script} --config config.yaml --output_dir {folder}{plugins}"
    base = base_of(record, {})
    if base is not None and base.is_embedded:
        train += f" --model_name_or_path {base.name}"
    elif base is not None and base.hub_id is None:
        train += f" --model_name_or_path PATH/TO/{base.short_name}"
    if record.config.get("push_to_hub"):
        train += " --push_to_hub false"
    commands = [train]
    if record.passk is not None:
        passk = record.passk
        ks = " ".join(map(str, passk["k"]))
        greedy = " --greedy" if passk["temperature"] == 0 else f" --temperature {passk['temperature']:g}"
        commands.append(
            f"trl-prorl passk{plugins} --run {folder} --split {passk['split']} --prompts {passk['prompts']} "
            f"--n {passk['n']} --k {ks} --seed {passk['seed']}{greedy}"
        )
    return f"In a checkout of trl-prorl ({checkout}), with this repository's `config.yaml`:\n\n```\n" + (
        "\n".join(commands) + "\n```"
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def _with_interval(values: list[float] | None, spec: str) -> str:
    """`value [low, high]`, `(n/a)` where there were too few prompts for an interval, or a dash."""
    if values is None:
        return "–"
    value, *interval = values
    return f"{value:{spec}} {_interval(interval, spec)}"


def named(metric: str, ends: list[float | None]) -> str:
    """A metric with its interval, where there is one."""
    return metric if None in ends else f"{metric}, 95 % interval {_interval(ends)}"


def _interval(ends: list[float | None], spec: str = ".3f") -> str:
    return "(n/a)" if None in ends else "[{}, {}]".format(*(format(end, spec) for end in ends))
