"""The soak passes a sound product, and finds what is broken on purpose. The soak itself: `make soak`."""

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.train import build


ROOT = Path(__file__).parents[2]
SOAK = Path(__file__).parents[1] / "soak"
sys.path.append(str(SOAK))

from cases import CASES, command, make_model  # noqa: E402
from mutants import MUTANTS  # noqa: E402


BASES = {"Part", "Reference", "Trigger"}
# What a checkpoint holds of these is not in the soak yet; another test loses nothing of it in a resume.
TRIED_ELSEWHERE = {
    "ElasticAverage": "tests/checkpoint/test_kill.py",
    "ElasticResets": "tests/checkpoint/test_kill.py",
    "EntropyWatch": "tests/resets/test_resets.py",
    "GuardGap": "tests/guards/test_guards.py",
    "Rollback": "tests/checkpoint/test_rollback.py",
}


def classes_with_state():
    """Return every class of the core that writes something into a checkpoint and reads it back."""
    found = []
    for file in sorted((ROOT / "trl_prorl").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                if {"state_dict", "load_state_dict"} <= methods or {"save", "load"} <= methods:
                    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                    found.append(getattr(importlib.import_module(module), node.name))
    return found


def test_what_a_checkpoint_holds_is_in_a_case_of_the_soak(tmp_path, monkeypatch):
    """A class that is new in a checkpoint needs a case in soak/cases.py, and a mutant in soak/mutants.py."""
    saved = set()

    def note_calls(method):
        def noting(self, *args):
            saved.add(type(self).__name__)
            return method(self, *args)

        return noting

    classes = classes_with_state()
    for cls in classes:
        for name in {"state_dict", "save"} & set(vars(cls)):
            monkeypatch.setattr(cls, name, note_calls(vars(cls)[name]))
    model = make_model(tmp_path / "model")
    for number, case in enumerate(CASES):
        _, arguments = command(case, model, processes=1)
        recipe = ROOT / "recipes" / "tiny" / f"variant{CASES[case][0]}.yaml"
        out = tmp_path / str(number)
        trainer, _ = build(*parse_recipe(["--config", str(recipe), *arguments, "--output_dir", str(out)]))
        trainer.parts.state_dict()
        for part in trainer.parts.values():
            part.save(tmp_path)
    missing = {cls.__name__ for cls in classes} - BASES - saved - set(TRIED_ELSEWHERE)
    assert not missing, f"no case of tests/soak/cases.py has {sorted(missing)}: add one, and a mutant that loses it"
    assert not saved & set(TRIED_ELSEWHERE), "the soak has them: take them out of TRIED_ELSEWHERE"
    assert all((ROOT / file).is_file() for file in TRIED_ELSEWHERE.values())


def soak(forks, *arguments):
    status, written = forks.run(SOAK / "soak.py", *arguments)
    assert status in (0, 1), written[-3000:]
    return status, written


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
    cases = {"reference": "A, full", "rewarmup": "C by a KL spike, hard", "growth": "A, growth", "means": "B, full"}
    case = cases.get(mutant, "B")
    # In most trials of another seed no run that has gone back is killed before it saves again.
    seed = {"future": "390"}.get(mutant, "3")
    arguments = ["--seed", seed, "--mutant", mutant, "--case", case, "--processes", "1", "--minutes", "0", "--first"]
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
