"""`docs/reference.md` is what the generator writes, and what the generator writes is true."""

import dataclasses
import importlib.util
import re
import shutil
import subprocess
import sys
import types
import typing
from itertools import count
from pathlib import Path

import pytest
import torch
from run_record import read_rows
from trl import GRPOConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.keys import KEYS, TASK_KEYS
from trl_prorl.record.gpu_usage import measure_gpu
from trl_prorl.record.keys import EVENTS, METRICS
from trl_prorl.refusals import REFUSALS
from trl_prorl.rollout.thinking import make_interrupted_rollout
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


def test_another_checkout_describes_itself(tmp_path):
    """A copy of the sources, whose keys have another word, in the environment that this checkout is installed in."""
    left_out = shutil.ignore_patterns("__pycache__", "models")
    for name in ("trl_prorl", "tasks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    (tmp_path / "docs").mkdir()
    shutil.copy(generator.__file__, tmp_path / "docs")
    keys = tmp_path / "trl_prorl" / "keys.py"
    keys.write_text(keys.read_text().replace("Costs no forward of its own.", "Costs no forward, says the copy."))
    before = (ROOT / "docs" / "reference.md").read_bytes()
    script = tmp_path / "docs" / "make_reference.py"
    subprocess.run([sys.executable, str(script)], check=True, capture_output=True, cwd=ROOT)
    assert "Costs no forward, says the copy." in (tmp_path / "docs" / "reference.md").read_text()
    assert (ROOT / "docs" / "reference.md").read_bytes() == before


def test_where_another_package_is_imported_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generator, "CHECKOUT", tmp_path)
    monkeypatch.setattr(generator, "PAGE", tmp_path / "reference.md")
    assert generator.main([]) == 2
    assert not (tmp_path / "reference.md").exists()
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'reference.md'} would describe {ROOT}")


def test_the_page_is_current():
    assert generator.PAGE.read_text() == generator.make_page(), f"run {generator.COMMAND}"


def test_check_tells_a_page_that_is_not_current(tmp_path, monkeypatch, capsys):
    page = tmp_path / "reference.md"
    monkeypatch.setattr(generator, "PAGE", page)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    page.write_text(page.read_text().replace("beta_old", "beta_new", 1))
    assert generator.main(["--check"]) == 1
    assert "is not current" in capsys.readouterr().err


@pytest.mark.parametrize("cls, field", FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_docstring_and_dataclass_agree(cls, field):
    entry = generator.entries(cls.__doc__).get(field.name)
    assert entry is not None, f"{field.name} has no docstring entry"
    assert len(entry.text) > 10, f"{field.name} is not described"
    assert entry.default == field.default
    assert type(entry.default) is type(field.default)
    assert "*optional*" in entry.header
    assert ("defaults to" in entry.header) == (field.default is not None)
    hint = typing.get_type_hints(cls)[field.name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    named = {str(option) if typing.get_args(option) else option.__name__ for option in options} - {"NoneType"}
    assert set(entry.type.split(" or ")) == named
    for choice in (KEYS | TASK_KEYS)[field.name].choices:
        said = choice in (None, "off") or f'"{choice}"' in entry.text
        assert said, f"{field.name} does not say what {choice} is"


def test_every_key_has_its_place_on_the_page():
    found = re.findall(r"^###+ `(\w+)`$", generator.PAGE.read_text(), re.MULTILINE)
    assert [field.name for _, field in FIELDS if found.count(field.name) != 1] == []


def test_every_refused_combination_is_on_the_page():
    page = generator.PAGE.read_text()
    section = page[page.index("## What is refused") : page.index("## Keys of a recipe's task")]
    rows = re.findall(r"^\d+\. `(.*)`<br>(.+)$", section, re.MULTILINE)
    examples = [refusal.example for refusal in REFUSALS]
    examples += [{name: key.example} for name, key in KEYS.items() if key.need is not None]
    for (shown, line), example in zip(rows, examples, strict=True):
        assert all(f"{key}: " in shown for key in example)
        assert len(line) > 40


def test_a_setting_that_is_not_refused_is_not_shown_as_one(monkeypatch):
    monkeypatch.setattr(generator, "REFUSALS", (dataclasses.replace(REFUSALS[0], example={"beta": 0.1}),))
    with pytest.raises(ValueError, match="is not refused"):
        generator.refused()


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


def right_once():
    """A reward that pays everything; its verifier accepts the first batch alone."""
    verdicts = iter([True] + [False] * 9)

    def reward(completions, **kwargs):
        return [1.0] * len(completions)

    reward.verifier = lambda completions, **kwargs: [next(verdicts)] * len(completions)
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


def test_the_tables_are_what_runs_write(run, make_trainer, monkeypatch):
    given = {
        "columns": {"task": ["talk"] * 16},
        "trainer_kwargs": {"rollout_func": make_interrupted_rollout(2, 2, "so")},
    }
    rich = run(reward=everything(), **given, **RICH_KEYS)
    plain = run(num_iterations=1)
    again = make_trainer(reward=everything(), **given, **RICH_KEYS, output_dir=rich.args.output_dir)
    events = read_rows(rich, "events.jsonl")  # the resume takes back what came after its checkpoint
    again.train(resume_from_checkpoint=str(Path(rich.args.output_dir, "checkpoint-4")))

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 50)
    on_a_gpu = set(measure_gpu(torch.device("cuda", 0)))
    in_metrics = {general(key) for row in read_rows(again) for key in row}
    for bound in ("MERGED_BOUND", "MORE_THAN_POLICY"):
        monkeypatch.setattr(f"trl_prorl.rollout.generation.{bound}", -1.0)
    bf16 = run(compact_generation="on", max_steps=2, num_iterations=1, model_init_kwargs={"dtype": "bfloat16"})
    in_metrics |= read_rows(bf16)[0].keys() & {"mean_abs_dlogp_sampler"}
    monkeypatch.setattr("trl_prorl.guards.guard_gap.WINDOW", 1)
    gamed = run(reward=right_once(), guard_gap=0.5, num_iterations=1, max_steps=2)
    in_metrics |= read_rows(gamed)[0].keys() & {"gold"}
    assert in_metrics | on_a_gpu == set(METRICS)

    def falls(completions, trainer_state, **kwargs):
        return [float(trainer_state.global_step < 14)] * len(completions)

    back = {"rollback": 1, "save_strategy": "steps", "save_steps": 5, "max_steps": 24, "num_iterations": 1}
    restarts = {"beta": 0.1, "ref_reset_every": 5, "adapter_restart": "merge"}
    fell = run(reward=falls, **back, **restarts)
    events += [event for run_ in (again, bf16, gamed, fell) for event in read_rows(run_, "events.jsonl")]
    kinds = {kind for key in EVENTS.values() for kind in key.events}
    assert {event["event"] for event in events} == kinds
    for event in events:
        allowed = {name for name, key in EVENTS.items() if event["event"] in key.events}
        required = {name for name in allowed if not EVENTS[name].when}
        assert required <= set(event) <= allowed
    assert {key for event in events for key in event} == set(EVENTS)

    # What is said to be always there is in a run of TRL's own keys, and nothing else is.
    of_plain = {general(key) for row in read_rows(plain) for key in row}
    assert of_plain == {name for name, key in METRICS.items() if not key.when}
    assert {name for name, key in METRICS.items() if "a GPU" in key.when} == on_a_gpu
