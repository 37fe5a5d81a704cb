from eval.analysis import repetitions
from eval.run_folder.reading import load_run


def test_what_changes_no_number_makes_no_other_configuration(make_run, make_rows):
    def run(seed, **config):
        return load_run(make_run(f"s{seed}", "A", make_rows(2), env={"seed": seed}, config={"seed": seed, **config}))

    harmless = {"hub_model_id": "me/a", "resume_from_checkpoint": True, "logging_steps": 5, "output_dir": "elsewhere"}
    runs = [run(0), run(1, **harmless), run(2, model_name_or_path="big"), run(3, dataset_name="other"), run(4, beta=1)]
    groups = repetitions.repetitions(runs)
    assert [[one.name for one in group] for group in groups] == [["s0", "s1"], ["s2"], ["s3"], ["s4"]]
    labels = repetitions.configuration_labels([[runs[1]], *groups])
    assert not any(key in label for label in labels for key in harmless)
    assert "model_name_or_path: big" in labels[2] and "dataset_name: other" in labels[3]


def test_labels_name_what_differs_and_has_an_effect(make_run, make_rows):
    configs = [
        {"optimizer_reset": "hard", "optimizer_reset_alpha": 0.1, "beta": 1.0},
        {"optimizer_reset": "soft", "optimizer_reset_alpha": 0.1, "beta": 1.0},
        {"optimizer_reset": "soft", "optimizer_reset_alpha": 0.25, "beta": 1.0},
        # The same as the first: what does nothing there, and what no number depends on.
        {"optimizer_reset": "hard", "optimizer_reset_alpha": 0.25, "beta": 1.0, "eval_steps": 7, "run_name": "x"},
        # An evaluation that a trigger watches does change numbers.
        {"optimizer_reset": "hard", "beta": 1.0, "ref_reset_stall": 2, "eval_steps": 5},
        {"optimizer_reset": "hard", "beta": 1.0, "ref_reset_stall": 2, "eval_steps": 7},
    ]
    runs = [
        load_run(make_run(f"c{i}", "C", make_rows(2), config={"ref_reset_stall": 0, **config}, env={"seed": i}))
        for i, config in enumerate(configs)
    ]
    groups = repetitions.repetitions(runs)
    assert [[run.name for run in group] for group in groups] == [["c0", "c3"], ["c1"], ["c2"], ["c4"], ["c5"]]
    assert repetitions.configuration_labels(groups[:3]) == [
        "C (optimizer_reset: hard)",
        "C (optimizer_reset: soft, optimizer_reset_alpha: 0.1)",
        "C (optimizer_reset: soft, optimizer_reset_alpha: 0.25)",
    ]
    assert repetitions.configuration_labels([groups[0], *groups[3:]]) == [
        "C (ref_reset_stall: 0)",
        "C (eval_steps: 5, ref_reset_stall: 2)",
        "C (eval_steps: 7, ref_reset_stall: 2)",
    ]
    assert repetitions.configuration_labels(groups[:1]) == ["C"]
