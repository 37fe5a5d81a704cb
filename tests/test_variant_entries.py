"""Every variant that a configuration can be has its entry, and everything by variant is read from there."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_record import write_run

from eval.analysis.frame import Frame
from eval.pages.curves import colour_of
from eval.pages.runs import learning_table
from eval.run_folder.reading import load_run
from eval.run_folder.run import sort_runs
from trl_prorl import ProRLConfig
from trl_prorl.hub.card import model_card
from trl_prorl.variants import DIFFERENT_OBJECTIVE, VARIANTS


ROOT = Path(__file__).parent.parent
RESETS = {"beta": 0.1, "ref_reset_every": 4}
ALONE = {"ref_reset_every": 4, "ref_reset_mix": 0.0, "optimizer_reset": "hard"}
STALL = {"beta": 0.1, "ref_reset_stall": 3, "eval_strategy": "steps", "eval_steps": 5, "optimizer_reset": "hard"}
KEYS = [("plain", {}), ("plain", ALONE), ("control", {"beta": 0.1}), ("A", RESETS)]
KEYS += [("A", {"beta": 0.1, "ref_reset_kl": 0.1}), ("B", {"beta_old": 0.1, "num_iterations": 2}), ("C", STALL)]
KEYS += [("C", RESETS | {"optimizer_reset": "soft"}), ("optimizer-only", RESETS | ALONE)]
KEYS += [("elastic", {"elastic_reset_every": 4}), ("base-anchored", {"beta_base": 0.1})]


def test_every_configuration_is_of_exactly_one_variant():
    """All combinations of what the rules look at."""
    seen = set()
    rule = ("beta", "beta_old", "beta_base", "resets", "ref_reset_mix", "treats_optimizer", "elastic_reset_every")
    off_or_on = ((0.0, 0.1), (0.0, 0.1), (0.0, 0.1), (False, True), (0.0, 0.5, 1.0), (False, True), (0, 4))
    for values in itertools.product(*off_or_on):
        args = SimpleNamespace(**dict(zip(rule, values, strict=True)))
        (name,) = [variant.name for variant in VARIANTS.values() if variant.when(args)]
        seen.add(name)
    assert seen == set(VARIANTS) == {name for name, _ in KEYS}


@pytest.mark.parametrize("name, keys", KEYS)
def test_a_configuration_can_be_every_one_of_them(name, keys):
    assert ProRLConfig(bf16=False, use_cpu=True, report_to="none", num_generations=4, **keys).variant == name


def test_entries_are_told_apart_and_lead_somewhere():
    entries = list(VARIANTS.values())
    for field in ("name", "short", "description", "recipe", "colour"):
        assert len({getattr(entry, field) for entry in entries}) == len(entries), field
    for entry in entries:
        assert (ROOT / "recipes" / entry.launcher).is_file()
        assert not entry.description.endswith(".")


@pytest.mark.parametrize("name", VARIANTS)
def test_report_and_card_know_it(name, tmp_path):
    config = {"task": "parity", "model_name_or_path": "tiny"}
    run = load_run(write_run(tmp_path, config, [{"step": 1}], env={"variant": name, "seed": 0}))
    entry = VARIANTS[name]
    assert colour_of(run) == entry.colour
    table = learning_table(Frame([run]))
    assert dict(zip(table.header, table.rows[0], strict=True))["anchor"] == entry.anchor
    card = model_card(tmp_path)
    assert f"**{name}**: {entry.description}." in card.text and f"variant-{name}" in card.data.tags
    assert f"recipes/{entry.launcher} --config" in card.text
    assert (DIFFERENT_OBJECTIVE in card.text) is entry.different_objective is (name == "B")
    assert "same objective" not in card.text


def test_runs_stand_in_the_order_of_the_entries(tmp_path):
    folders = [
        write_run(tmp_path / name, {"task": "parity"}, [{"step": 1}], env={"variant": name})
        for name in reversed([*VARIANTS, "own"])
    ]
    runs = [load_run(folder) for folder in folders]
    assert [run.variant for run in sort_runs(runs)] == [*VARIANTS, "own"]
