"""`docs/reference.md` is what the generator writes, and what the generator writes is true."""

import ast
import dataclasses
import importlib.util
import re
from itertools import count
from pathlib import Path

from run_record import read_lines
from trl import GRPOConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.extras.thinking import make_interrupted_rollout
from trl_prorl.keys import KEYS, TASK_KEYS
from trl_prorl.run.columns import EVENTS, METRICS
from trl_prorl.train import TaskArguments


ROOT = Path(__file__).parent.parent.parent


spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)


FIELDS = [
    (cls, field)
    for cls, parent in ((ProRLConfig, GRPOConfig), (TaskArguments, ScriptArguments))
    for field in dataclasses.fields(cls)
    if field.name not in parent.__dataclass_fields__
]


def test_the_pages_are_current():
    assert generator.PAGE.read_text() == generator.make_page(), f"run {generator.COMMAND}"
    assert generator.SUPPORTED_PAGE.read_text() == generator.make_supported_page(), f"run {generator.COMMAND}"


def test_docstring_and_dataclass_agree():
    for cls, field in FIELDS:
        header = re.search(rf"^ +{field.name} \((.*)\):$", cls.__doc__, re.MULTILINE)[1]
        written = re.search("defaults to `([^`]*)`", header)
        default = ast.literal_eval(written[1]) if written else None
        assert (default, type(default)) == (field.default, type(field.default)), field.name
        for choice in (KEYS | TASK_KEYS)[field.name].choices:
            text = generator.DESCRIPTIONS[field.name].text
            assert choice in (None, "off") or f'"{choice}"' in text, f"{field.name}: {choice}"


# ------------------------------------------------------------------------------------------------- the record


def general(key):
    key = re.sub(r"^rewards/.*/", "rewards/NAME/", key)
    return re.sub(r"^(reward|pass_rate)/.*", r"\1/TASK", key)


def everything():
    """A reward that is unbounded once, and all equal in some groups."""
    calls = count(1)

    def reward(completions, **kwargs):
        if next(calls) == 5:
            return [float("inf")] * len(completions)
        return [float(len(c[-1]["content"]) % 3 == 0) for c in completions]

    return reward


# Every key that adds columns to the record.
RICH_KEYS = {
    "beta": 0.1,
    "beta_old": 0.1,
    "beta_base": 0.1,
    "ref_reset_every": 2,
    "optimizer_reset": "soft",
    "elastic_reset_every": 2,
    "lora_growth_every": 2,
    "kl_clamp": 10.0,
    "log_update_norm": True,
    "skip_zero_rows": True,
    "drop_zero_rows": True,
    "dynamic_sampling_rounds": 1,
    "nonfinite": "skip",
    "entropy_floor": 100.0,
    "entropy_patience": 1,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 4,
}


def columns(trainer):
    """Return the columns of a run's rows; those that TRL's log has under the same name, and no table, are "…"."""
    rows = read_lines(Path(trainer.args.output_dir, "metrics.jsonl"))
    logged = set().union(*trainer.state.log_history)
    found = {key for row in rows for key in row}
    return {"…" if key in logged and general(key) not in METRICS else general(key) for key in found}


def test_the_tables_describe_what_runs_write(run, make_trainer):
    given = {
        "columns": {"task": ["talk"] * 16},
        "trainer_kwargs": {"rollout_func": make_interrupted_rollout(2, 2, "so")},
    }
    rich = run(reward=everything(), **given, **RICH_KEYS)
    plain = run(num_iterations=1)
    again = make_trainer(reward=everything(), **given, **RICH_KEYS, output_dir=rich.args.output_dir)
    again.train(resume_from_checkpoint=str(Path(rich.args.output_dir, "checkpoint-4")))
    events = read_lines(Path(rich.args.output_dir, "events.jsonl"))
    assert columns(again) <= set(METRICS)
    assert len({event["event"] for event in events}) > 5
    for event in events:
        allowed = {name for name, key in EVENTS.items() if event["event"] in key.events}
        required = {name for name in allowed if not EVENTS[name].when}
        assert required <= set(event) <= allowed
    # What is said to be always there is in a run of TRL's own keys, and nothing else is.
    assert columns(plain) == {name for name, key in METRICS.items() if not key.when}
