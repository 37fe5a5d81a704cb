"""A run folder as a model card: what was trained, how, and its scores. The card names what the record lacks."""

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from trl import GRPOTrainer

from ..files import replaced
from ..run import run_files
from ..run.base_model import BaseModel, identify, is_hub_name
from ..run.folder import CONFIG_FILE, ENV_FILE, EVALUATION_KEYS
from ..run.meter import EVENTS_FILE, METRICS_FILE
from ..run.run_id import RUN_ID, other_run
from ..run.shapes import Shape, optional, table, text
from ..variants import DIFFERENT_OBJECTIVE, VARIANTS, Variant


PASSK_FILE, CARD_FILE = "passk.json", "README.md"
TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
RESETS = ("reset", "elastic_reset")
RESETS_SHOWN = 50

# Keys and values that a recipe may hold and a card may not.
SECRET_KEYS = re.compile(r"(^|_)(hub_token|auth_token|token|password|secret|api_key)$")
NO_SECRETS = frozenset(["eos_token", "pad_token", "bos_token", "unk_token", "sep_token", "cls_token", "mask_token"])
SECRET_VALUES = re.compile(r"\bhf_[A-Za-z0-9]{20,}")

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


ADAPTER = table(known={"base_model_name_or_path": optional(text)})


@dataclass(frozen=True)
class Record:
    """
    The content of a run folder; parts that are missing are empty.

    Attributes:
        config (`dict`), env (`dict`):
            `config.yaml`, without secrets, and `env.json`.
        events (`list[dict]` or `None`):
            `events.jsonl`.
        passk (`dict` or `None`):
            `passk.json`.
        steps (`int` or `None`):
            Optimizer steps done, by `metrics.jsonl`.
    """

    config: dict[str, Any]
    env: dict[str, Any]
    events: list[dict[str, Any]] | None
    passk: dict[str, Any] | None
    steps: int | None

    @property
    def variant(self) -> str:
        return str(self.env.get("variant", "unknown"))

    @property
    def known_variant(self) -> Variant | None:
        """What is known of its variant."""
        return VARIANTS.get(self.variant)

    @property
    def can_be_evaluated(self) -> bool:
        """Whether `eval.passk` knows its model and its task."""
        return all(self.config.get(key) for key in EVALUATION_KEYS)

    @property
    def resets(self) -> list[dict[str, Any]]:
        return [event for event in self.events or [] if event.get("event") in RESETS]

    @property
    def evaluated(self) -> bool:
        """Whether `passk.json` is there, and measured the weights that the run left behind after its last step."""
        measured_at = (self.passk or {}).get("steps_on_record", (self.passk or {}).get("step"))
        return self.passk is not None and (measured_at is None or self.steps is None or measured_at == self.steps)


def read_record(run_dir: str | os.PathLike) -> Record:
    """
    Read a run folder, however little it holds. The evaluation of another run that had the folder before is left out.

    Raises:
        `ValueError`: a file cannot be read.
    """
    folder = Path(run_dir)
    config, events, last = folder / CONFIG_FILE, folder / EVENTS_FILE, run_files.last_line(folder / METRICS_FILE)
    env, passk = _read(folder / ENV_FILE, run_files.ENV) or {}, _read(folder / PASSK_FILE, run_files.passk)
    if passk is not None and other_run(passk, env.get(RUN_ID)):
        passk = None
    return Record(
        config=without_secrets(run_files.read_yaml(config)) if config.is_file() else {},
        env=env,
        events=run_files.read_jsonl(events, run_files.EVENTS) if events.is_file() else None,
        passk=passk,
        steps=last["step"] if last else None,
    )


def without_secrets(config: Any) -> Any:
    """A recipe without its tokens and passwords, at any depth."""
    if isinstance(config, dict):
        return {
            key: without_secrets(value)
            for key, value in config.items()
            if str(key) in NO_SECRETS or not SECRET_KEYS.search(str(key))
        }
    if isinstance(config, list):
        return [without_secrets(value) for value in config]
    return SECRET_VALUES.sub("[removed]", config) if isinstance(config, str) else config


def model_card(
    run_dir: str | os.PathLike,
    model_dir: str | os.PathLike | None = None,
    *,
    repo: str | None = None,
    weights_dir: str | os.PathLike | None = None,
    adapter: bool | None = None,
    tags: Iterable[str] = (),
    datasets: Iterable[str] = (),
) -> ModelCard:
    """
    The model card of a run.

    Args:
        run_dir (`str` or `os.PathLike`):
            Where the record is.
        model_dir (`str` or `os.PathLike`, *optional*):
            Where the trained model is; defaults to `run_dir`.
        repo (`str`, *optional*):
            Its repository on the Hub; defaults to the folder's name.
        weights_dir (`str` or `os.PathLike`, *optional*):
            Where the lines that load the model find it without a repository; defaults to `model_dir`.
        adapter (`bool`, *optional*):
            Whether the model is a PEFT adapter; `None` looks into the folder.
        tags (iterable of `str`), datasets (iterable of `str`):
            Further metadata.

    Raises:
        `ValueError`: a file of the record cannot be read.
    """
    folder = Path(model_dir or run_dir)
    record = read_record(run_dir)
    variant = record.known_variant
    adapter_config = _read(folder / "adapter_config.json", ADAPTER) or {}
    adapter = bool(adapter_config) if adapter is None else adapter
    base = base_of(record, adapter_config)
    name = (repo or folder.resolve().name).split("/")[-1]
    data = ModelCardData(
        base_model=base.hub_id if base else None,
        datasets=sorted({*datasets, *_datasets(record.config)}) or None,
        eval_results=eval_results(record) or None,
        library_name="peft" if adapter else "transformers",
        model_name=name,
        pipeline_tag="text-generation",
        tags=sorted({"trl-prorl", "trl", "grpo", f"variant-{record.variant}", *(["lora"] * adapter), *tags}),
    )
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        summary=_summary(record, adapter),
        base=_base_text(base),
        variant=record.variant,
        variant_meaning=variant.description if variant else "the record does not say which",
        different_objective=DIFFERENT_OBJECTIVE if variant and variant.different_objective else None,
        resets=_resets_text(record),
        results=_results_text(record, Path(run_dir)),
        usage=usage(repo or str(weights_dir or folder), base, adapter),
        usage_note=_usage_note(base, adapter),
        training=_training_text(record),
        recipe=yaml.safe_dump(record.config, sort_keys=True).strip() if record.config else None,
        reproduce=_reproduce_text(record),
        versions=record.env.get("versions"),
        citations="\n\n".join([PRORL_CITATION, GRPOTrainer._paper["citation"], TRL_CITATION]),
    )


def write_card(card: ModelCard, folder: str | os.PathLike) -> Path:
    """Write `README.md`, and return its path."""
    path = Path(folder) / CARD_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as aside:
        aside.write_text(str(card), encoding="utf-8")
    return path


def base_of(record: Record, adapter_config: dict[str, Any]) -> BaseModel | None:
    """The base model: as the run noted it, else as its recipe or its adapter names it; `None` if none of them does."""
    if record.env.get("base_model"):
        noted = record.env["base_model"]
        return BaseModel(**{field.name: noted[field.name] for field in fields(BaseModel) if field.name in noted})
    name = record.config.get("model_name_or_path") or adapter_config.get("base_model_name_or_path")
    return identify(name) if name else None


def eval_results(record: Record) -> list[EvalResult]:
    """
    The `model-index`: held-out pass@k of the trained model. A value there is one number, so the interval and the
    settings are in the metric's name and arguments.
    """
    if not record.evaluated:
        return []
    passk, dataset = record.passk, next(iter(_datasets(record.config)), None)
    parts = [(passk["task"], passk.get("level"), passk, dataset)]
    for name, other in (passk.get("others") or {}).items():
        parts.append((other.get("task", name), other.get("level"), other, None))
    results = []
    for task, level, part, dataset_id in parts:
        for k in _sizes(part):
            interval = part["trained"][f"interval@{k}"]
            results.append(
                _eval_result(
                    (task, level, passk["split"], dataset_id),
                    f"pass@{k}",
                    _named(f"pass@{k}", interval),
                    part["trained"][f"pass@{k}"],
                    {
                        "interval_95": interval,
                        "base": part["base"][f"pass@{k}"],
                        "base_interval_95": part["base"][f"interval@{k}"],
                        "prompts": part["prompts"],
                        "n": part["n"],
                        "temperature": passk["temperature"],
                        "seed": passk["seed"],
                    },
                )
            )
    if greedy := _greedy(passk):
        interval = greedy["trained"]["interval"]
        arguments = {"interval_95": interval, "base": greedy["base"]["accuracy"], "prompts": passk["prompts"]}
        results.append(
            _eval_result(
                (passk["task"], passk.get("level"), passk["split"], dataset),
                "accuracy",
                _named("greedy accuracy", interval),
                greedy["trained"]["accuracy"],
                arguments | {"decoding": "greedy"},
            )
        )
    return results


def _eval_result(where: tuple, metric: str, name: str, value: float, arguments: dict[str, Any]) -> EvalResult:
    task, level, split, dataset = where
    return EvalResult(
        task_type="text-generation",
        dataset_type=dataset or task,
        dataset_name=task,
        dataset_config=None if level is None else f"level {level}",
        dataset_split=split,
        metric_type=metric,
        metric_name=name,
        metric_value=value,
        # An interval has no ends where there were too few prompts for one.
        metric_args={key: value for key, value in arguments.items() if value != [None, None]},
    )


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


def _read(path: Path, shape: Shape) -> dict[str, Any] | None:
    return run_files.read_json(path, shape) if path.is_file() else None


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def _with_interval(values: list[float] | None, spec: str) -> str:
    """`value [low, high]`, `(n/a)` where there were too few prompts for an interval, or a dash."""
    if values is None:
        return "–"
    value, *interval = values
    return f"{value:{spec}} {_interval(interval, spec)}"


def _named(metric: str, ends: list[float | None]) -> str:
    """A metric with its interval, where there is one."""
    return metric if None in ends else f"{metric}, 95 % interval {_interval(ends)}"


def _interval(ends: list[float | None], spec: str = ".3f") -> str:
    return "(n/a)" if None in ends else "[{}, {}]".format(*(format(end, spec) for end in ends))


def _datasets(config: dict[str, Any]) -> list[str]:
    name = config.get("dataset_name")
    known = isinstance(name, str) and is_hub_name(name) and not Path(name).exists()
    return [name] if known else []


def _task(record: Record) -> str | None:
    task, level = record.config.get("task"), record.config.get("task_level")
    if task is None:
        return None
    return f"`{task}`" + (f" (level {level})" if level is not None else "")


def _summary(record: Record, adapter: bool) -> str:
    what = "A LoRA adapter" if adapter else "A language model"
    steps = "an unknown number of" if record.steps is None else record.steps
    task = _task(record)
    return (
        f"{what}, trained with trl-prorl (prolonged GRPO on top of [TRL](https://github.com/huggingface/trl)) for "
        f"{steps} optimizer steps{f' on the task {task}' if task else ''}."
    )


def _base_text(base: BaseModel | None) -> str:
    if base is None:
        return "Base model: the record does not name it."
    if base.hub_id:
        return f"Base model: [{base.hub_id}](https://huggingface.co/{base.hub_id})."
    if base.is_embedded:
        return f"Base model: `{base.name}`, which comes with trl-prorl. It is not on the Hub.{_hash_text(base)}"
    origin = ""
    if base.origin:
        origin = f", which says that it was made from [{base.origin}](https://huggingface.co/{base.origin})"
    return f"Base model: `{base.short_name}`, a local folder{origin}. It is not on the Hub.{_hash_text(base)}"


def _hash_text(base: BaseModel) -> str:
    return f" SHA-256 of its weights: `{base.sha256}`." if base.sha256 else ""


def _resets_text(record: Record) -> str:
    if record.events is None:
        return "The record has no events, so which resets were applied is not known."
    if not record.resets:
        return "No reset was applied."
    rows = []
    for event in record.resets[:RESETS_SHOWN]:
        kl = event.get("kl_before")
        optimizer = event.get("optimizer_reset")
        if optimizer == "soft":
            optimizer = f"soft, α = {event.get('alpha')}"
        rows.append(
            [
                str(event.get("step_requested") or "–"),
                str(event["step_applied"]),
                str(event.get("reason", "–")),
                "Elastic Reset" if event["event"] == "elastic_reset" else str(optimizer),
                f"{kl:.4g}" if isinstance(kl, float) and kl == kl else "–",
            ]
        )
    header = ["requested at step", "applied at step", "reason", "optimizer", "KL to the reference before"]
    more = len(record.resets) - len(rows)
    notes = [f"And {more} more, see `events.jsonl`."] if more else []
    return "\n\n".join([f"Resets applied: {len(record.resets)}.", _table(header, rows), *notes])


def _results_text(record: Record, run_dir: Path) -> str:
    command = f" `python -m eval.passk --run {shlex.quote(str(run_dir))}` evaluates "
    passk = record.passk
    if passk is None:
        hint = f"{command}it; `python -m eval.push` then updates this card." if record.can_be_evaluated else ""
        return f"Not evaluated yet.{hint}"
    if not record.evaluated:
        hint = f"{command}them." if record.can_be_evaluated else ""
        return (
            f"The weights here are those of step {record.steps}; the last evaluation is of step {passk['step']}, so "
            f"its numbers are left out.{hint}"
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


def _greedy(part: dict[str, Any]) -> dict[str, Any] | None:
    """The greedy decoding of a part of `passk.json`, if both sides are whole there."""
    found = part.get("greedy") or {}
    whole = all({"accuracy", "interval"} <= found.get(side, {}).keys() for side in ("base", "trained"))
    return found if whole else None


def _sizes(part: dict[str, Any]) -> list[int]:
    """The sizes of the draw that a part of `passk.json` has for both sides."""
    return [k for k in part.get("k", []) if all(f"pass@{k}" in part[side] for side in ("base", "trained"))]


def _passk_table(part: dict[str, Any]) -> str:
    rows = []
    for k in _sizes(part):
        sides = [[part[side][f"pass@{k}"], *part[side][f"interval@{k}"]] for side in ("base", "trained")]
        gain = part.get("gain", {}).get(f"pass@{k}")
        rows.append([f"pass@{k}", *(_with_interval(side, ".3f") for side in sides), _with_interval(gain, "+.3f")])
    if greedy := _greedy(part):
        sides = [[greedy[side]["accuracy"], *greedy[side]["interval"]] for side in ("base", "trained")]
        gain = greedy.get("gain")
        rows.append(["greedy", *(_with_interval(side, ".3f") for side in sides), _with_interval(gain, "+.3f")])
    return _table(["", "base", "trained", "gain"], rows)


def _usage_note(base: BaseModel | None, adapter: bool) -> str:
    if not adapter or base is None or base.hub_id or base.is_embedded:
        return ""
    return f"`{base.name}` is where the base model was when this was trained; put your own path there."


def _training_text(record: Record) -> str:
    env, lines = record.env, []
    if not env:
        return "The record does not say on what it was trained."
    hardware = env.get("hardware") or {}
    machine = hardware.get("gpu") or f"{hardware.get('cpus', '?')} CPU cores ({hardware.get('machine', '?')})"
    lines.append(f"Trained on {machine}; seed {env.get('seed')}.")
    if env.get("trainable_parameters") is not None:
        lines.append(f"{env['trainable_parameters']:,} of {env['parameters']:,} parameters were trained.")
    resumes = [str(event["step_applied"]) for event in record.events or [] if event.get("event") == "resume"]
    if resumes:
        lines.append(f"The run was resumed at step {', '.join(resumes)}.")
    return " ".join(lines)


def _reproduce_text(record: Record) -> str:
    if not record.config:
        return "There is no recipe in the record."
    commit = record.env.get("git_commit")
    version = (record.env.get("versions") or {}).get("trl-prorl")
    checkout = f"commit `{commit}`" if commit else f"version {version}" if version else "an unknown version"
    if "task" not in record.config:
        return (
            f"`config.yaml` holds the arguments of `ProRLTrainer` (trl-prorl, {checkout}); data and rewards came from "
            "a script of its own, which is not part of the record."
        )
    # Any launcher trains any recipe: `config.yaml` decides.
    script = record.known_variant.launcher if record.known_variant else "grpo_variantA.py"
    folder = "runs/again"
    train = f"python recipes/{script} --config config.yaml --output_dir {folder}"
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
            f"python -m eval.passk --run {folder} --split {passk['split']} --prompts {passk['prompts']} "
            f"--n {passk['n']} --k {ks} --seed {passk['seed']}{greedy}"
        )
    return f"In a checkout of trl-prorl ({checkout}), with this repository's `config.yaml`:\n\n```\n" + (
        "\n".join(commands) + "\n```"
    )
