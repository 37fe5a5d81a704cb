"""The soak passes a sound product, and finds what is broken on purpose. The soak itself: `make soak`."""

import pkgutil
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trl_prorl import extras
from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.parts import Part
from trl_prorl.train import build
from trl_prorl.watch import Alarm


ROOT = Path(__file__).parents[2]
SOAK = Path(__file__).parents[1] / "soak"
sys.path.append(str(SOAK))

from cases import CASES, command, make_model  # noqa: E402
from mutants import MUTANTS  # noqa: E402


def soak(forks, *arguments):
    status, written = forks.run(SOAK / "soak.py", *arguments)
    assert status in (0, 1), written[-3000:]
    return status, written


def test_it_starts(forks):
    """The others are slow: a name that it no longer finds would be seen late."""
    status, written = forks.run(SOAK / "soak.py", "--help")
    assert status == 0, written[-3000:]


@pytest.mark.slow
def test_a_sound_product_passes_and_every_stage_is_hit(forks, tmp_path):
    status, written = soak(forks, "--seed", "1", "--minutes", "0", "--kills", "8", "--folder", str(tmp_path))
    assert status == 0, written[-3000:]
    for stage in ("generation", "update", "evaluation", "save"):
        assert int(re.search(rf"^{stage} .* (\d+)$", written, re.MULTILINE)[1]) >= 1
    accidents, found = re.search(r"^seed 1, .* minutes: (\d+) accidents, (\d+) found$", written, re.MULTILINE).groups()
    assert int(accidents) >= 8
    assert found == "0"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_defect_is_found(forks, tmp_path, mutant):
    cases = {
        "reference": "A, full",
        "stall": "C by a stall, soft, full",
        "rewarmup": "C by a KL spike, hard",
        "growth": "A, growth",
        "means": "B, full",
    }
    case = cases.get(mutant, "B")
    # In most trials of another seed no run that has gone back is killed before it saves again.
    seed = {"future": "4897"}.get(mutant, "3")
    arguments = ["--seed", seed, "--mutant", mutant, "--case", case, "--processes", "1", "--minutes", "0"]
    status, written = soak(forks, *arguments, "--kills", "60", "--folder", str(tmp_path / "first"))
    assert status == 1, written[-3000:]
    assert "TypeError" not in written  # of a mutant that cannot run at all
    if mutant != "record":
        return
    assert "metrics.jsonl: " in written
    again = shlex.split(re.search(r"Again: python tests/soak/soak.py (.*)", written)[1])
    status, repeated = soak(forks, *again, "--folder", str(tmp_path / "again"))
    assert status == 1
    assert again in [shlex.split(line.partition("soak.py")[2]) for line in repeated.splitlines()]


def test_each_part_that_a_checkpoint_remembers_is_in_a_case(tmp_path):
    """A part has a state if its class names what it remembers, or writes a state or tensors itself."""
    for module in pkgutil.walk_packages(extras.__path__, f"{extras.__name__}."):
        import_module(module.name)
    writers = ("state_dict", "save")
    stateful = {
        part
        for part in [*Part.__subclasses__(), *Alarm.__subclasses__()]
        if part.__module__.startswith("trl_prorl.")
        and (part.remembers or any(getattr(part, name) is not getattr(Part, name) for name in writers))
    }
    model = make_model(tmp_path / "model")
    in_cases = set()
    for case in CASES:
        script, arguments = command(case, model, processes=1)
        recipe = Path(script).parent / "tiny" / f"variant{CASES[case][0]}.yaml"
        given = ["--config", str(recipe), *arguments, "--output_dir", str(tmp_path / case)]
        task, args, model_args = parse_recipe([*given, "--use_cpu", "true", "--bf16", "false"])
        trainer, _ = build(task, args, model_args)
        in_cases |= {type(part) for part in trainer.parts.values()}
    assert {part.__name__ for part in stateful - in_cases} == set()
