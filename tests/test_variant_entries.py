"""
Every variant that a configuration can be has its entry, and everything by variant is read from there. A run whose
resets never came is the control, and everything that names it says so (when: test_resets.py).
"""

import itertools
from types import SimpleNamespace

import pytest
from run_record import write_run

from trl_prorl import ProRLConfig
from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE, NEVER_RESET, VARIANTS, describe_missing_reset
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages.plotting import colour_of
from trl_prorl.eval.pages.runs import overview_table
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.hub.card import model_card


RESETS = {"beta": 0.1, "ref_reset_every": 4}
ALONE = {"ref_reset_every": 4, "ref_reset_mix": 0.0, "optimizer_reset": "hard"}
STALL = {"beta": 0.1, "ref_reset_stall": 3, "eval_strategy": "steps", "eval_steps": 5, "optimizer_reset": "hard"}
KEYS = [
    ("plain", {}),
    ("plain", ALONE),
    ("control", {"beta": 0.1}),
    ("A", RESETS),
    ("A", {"beta": 0.1, "ref_reset_kl": 0.1}),
    ("B", {"beta_old": 0.1, "num_iterations": 2}),
    ("C", STALL),
    ("C", RESETS | {"optimizer_reset": "soft"}),
    ("optimizer-only", RESETS | ALONE),
    ("elastic", {"elastic_reset_every": 4}),
    ("synced", {"beta": 0.1, "sync_ref_model": True}),
    ("teacher", {"beta": 0.1, "ref_model": "embedded"}),
    ("base-anchored", {"beta_base": 0.1}),
]


def test_every_configuration_is_of_exactly_one_variant():
    """All combinations of what the rules look at."""
    seen = set()
    looked_at = {
        "beta": (0.0, 0.1),
        "beta_old": (0.0, 0.1),
        "beta_base": (0.0, 0.1),
        "resets": (False, True),
        "ref_reset_mix": (0.0, 0.5, 1.0),
        "treats_optimizer": (False, True),
        "elastic_reset_every": (0, 4),
        "sync_ref_model": (False, True),
        "ref_model": (None, "teacher"),
    }
    for values in itertools.product(*looked_at.values()):
        args = SimpleNamespace(**dict(zip(looked_at, values, strict=True)))
        args.anchored = args.beta != 0.0 or args.beta_old != 0.0 or args.beta_base != 0.0
        (name,) = [variant.name for variant in VARIANTS.values() if variant.when(args)]
        seen.add(name)
    assert seen == set(VARIANTS) == {name for name, _ in KEYS}


@pytest.mark.parametrize("name, keys", KEYS)
def test_a_configuration_can_be_every_one_of_them(name, keys):
    assert ProRLConfig(bf16=False, use_cpu=True, report_to="none", num_generations=4, **keys).variant == name


@pytest.mark.parametrize("name", VARIANTS)
def test_report_and_card_know_it(name, tmp_path):
    config = {"task": "parity", "model_name_or_path": "tiny"}
    run = load_run(write_run(tmp_path, config, [{"step": 1}], env={"variant": name, "seed": 0}))
    entry = VARIANTS[name]
    assert colour_of(Frame([run]).groups[0]) == entry.colour.lower()
    table = overview_table(Frame([run]))
    assert dict(zip(table.header, table.rows[0], strict=True))["variant"] == entry.label
    card = model_card(tmp_path)
    assert entry.description in card.text
    assert (DIFFERENT_OBJECTIVE in card.text) is entry.different_objective is (name == "B")


@pytest.mark.parametrize(
    "variants, config, applied, steps, said",
    [
        ("A C optimizer-only", {"max_steps": 40}, 0, 40, NEVER_RESET),
        ("A", {"max_steps": 40}, 0, 39, "has not been reset yet"),
        ("A", {}, 0, 40, "has not been reset"),  # trained by epochs: when it ends is not on record
        ("A", {"max_steps": 40}, 1, 40, None),
        ("control B elastic", {"max_steps": 40}, 0, 40, None),
    ],
)
def test_what_is_said_of_a_run_without_resets(variants, config, applied, steps, said):
    assert {describe_missing_reset(variant, config, applied, steps) for variant in variants.split()} == {said}
