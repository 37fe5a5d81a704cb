import pytest

from trl_prorl.cli.variants import VARIANTS
from trl_prorl.eval.analysis.configurations import common_name, group_labels, repetitions
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.run_folder.run import base_family


A, B, C = (VARIANTS[name].label for name in ("A", "B", "C"))


def names(groups):
    return [[run.name for run in group] for group in groups]


def test_what_changes_no_number_makes_no_other_configuration(read_run):
    harmless = {"hub_model_id": "me/a", "resume_from_checkpoint": True, "logging_steps": 5, "output_dir": "elsewhere"}
    keys = [{}, harmless, {"model_name_or_path": "big"}, {"dataset_name": "other"}, {"beta": 1}]
    groups = repetitions([read_run("A", i, config={"seed": i, **config}) for i, config in enumerate(keys)])
    assert names(groups) == [["A0", "A1"], ["A2"], ["A3"], ["A4"]]
    assert group_labels(groups)[1:] == ["A2 (big)", "A3 (tiny, dataset_name=other)", "A4 (tiny, β=1)"]


def test_an_evaluation_that_no_trigger_reads_makes_no_other_configuration(read_run):
    evaluated = {"eval_strategy": "steps", "eval_steps": 5}
    for stall, expected in (({}, [["A0", "A1"]]), ({"ref_reset_stall": 2}, [["A0"], ["A1"]])):
        groups = repetitions([read_run("A", 0, config=stall), read_run("A", 1, config={**stall, **evaluated})])
        assert names(groups) == expected


def test_seeds_of_base_and_training_make_no_other_configuration(read_run):
    """
    `embedded` is the reversing base of seed 0, so r1 has the seeds of r0 and began anew; the base of another task is
    another configuration.
    """
    models = ["embedded", "embedded:reverse_digits", "embedded:reverse_digits:3", "embedded:sorting:3"]
    runs = [read_run("A", 1, f"r{i}", config={"model_name_or_path": name}) for i, name in enumerate(models)]
    assert names(repetitions(runs)) == [["r0", "r2"], ["r1"], ["r3"]]
    assert runs[2].repetition == (3, "1")
    for model in ("Qwen/Qwen2.5-0.5B", "embedded:sorting:-1", 3):
        assert base_family(model) == (model, None)


def test_what_a_resume_changed_is_named_and_makes_another_configuration(read_run):
    """A longer run is the same one."""

    def resumed(name, seed, **changed):
        event = {"event": "resume", "step_requested": 2, "step_applied": 2, "changed": changed}
        return read_run("A", seed, name, config={"learning_rate": 1e-5}, events=[event])

    plain = read_run("A", 0, "A-s0", config={"learning_rate": 1e-5})
    groups = repetitions([plain, resumed("A-s1", 1, learning_rate=[1e-4, 1e-5]), resumed("A-s2", 2, max_steps=[4, 8])])
    assert names(groups) == [["A-s0", "A-s2"], ["A-s1"]]
    assert "lr=1e-05 from step 2" in group_labels(groups)[1]


@pytest.fixture
def labels(read_run):
    """The labels of runs whose names have nothing in common, each given by its variant, its seeds and its keys."""
    letters = iter("abcdefghijklmnopqrstuvw")

    def make(*groups):
        runs = [(variant, seed, config) for variant, seeds, config in groups for seed in range(seeds)]
        return group_labels(repetitions([read_run(*run[:2], next(letters), config=run[2]) for run in runs]))

    return make


def test_a_name_says_what_differs_and_nothing_else(labels):
    same = {"beta": 1.0, "temperature": 0.7, "pack_groups": "on", "ref_reset_every": 40}
    of_c = {**same, "optimizer_reset_alpha": 0.1}
    assert labels(
        ("A", 2, same),
        ("A", 2, {**same, "beta": 0.5}),
        ("A", 2, {**same, "ref_reset_every": 0, "ref_reset_kl": 0.015, "ref_reset_kl_window": 10}),
        ("C", 2, {**of_c, "optimizer_reset": "hard"}),
        ("C", 2, {**of_c, "optimizer_reset": "soft"}),
        ("C", 2, {**of_c, "optimizer_reset": "hard", "ref_reset_stall": 2}),
        ("B", 2, {"beta_old": 1.0}),
    ) == [
        f"{A} (β=1, K=40)",
        f"{A} (β=0.5, K=40)",
        f"{A} (β=1, KL>0.015, over 10 steps)",
        f"{C} (hard)",
        f"{C} (soft)",
        f"{C} (hard, stall 2)",
        B,
    ]


def test_a_run_is_called_by_its_folder_and_settings_come_after_it(read_run):
    runs = [
        read_run("plain", 0, "fast", config={"learning_rate": 1e-5}),
        read_run("plain", 0, "plain-slow", config={"learning_rate": 1e-6}),
        read_run("B", 0, "Baseline"),
        *(read_run("A", seed, f"mine_seed{seed}") for seed in (1, 2)),
        *(read_run("control", seed, name) for seed, name in ((1, "x"), (2, "y"))),
    ]
    plain, b, a, control = (VARIANTS[name].short for name in ("plain", "B", "A", "control"))
    fast = f"fast ({plain}, lr=1e-05)"
    labels = [fast, "plain-slow (lr=1e-06)", f"Baseline ({b})", f"mine ({a})", VARIANTS["control"].label]
    assert group_labels(repetitions(runs)) == labels


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["a_seed1", "a_seed2"], "a"),
        (["lr0.1-s1", "lr0.1-s12"], "lr0.1"),
        (["seed0/A", "seed1/A"], ""),
        (["cruns/plain-s1", "cruns3/plain-s2"], ""),
    ],
)
def test_what_the_folders_of_seeds_have_in_common(names, common):
    assert common_name(names) == common


def test_models_of_the_same_name_in_two_folders_are_two_grounds(read_run):
    runs = [read_run("plain", seed, config={"model_name_or_path": f"{folder}/m"}) for seed, folder in enumerate("aba")]
    assert [len(groups) for groups in Frame(runs).grounds.values()] == [1, 1]
