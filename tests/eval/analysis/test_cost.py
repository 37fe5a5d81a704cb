from eval.analysis.cost import control_of
from eval.run_folder.reading import load_run


def test_control_of_the_same_seed(make_run, make_rows):
    runs = [
        load_run(make_run(f"{variant}{seed}", variant, make_rows(2), env={"seed": seed}))
        for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))
    ]
    assert control_of(runs[2], runs).name == "control1"
    assert control_of(runs[3], runs).name == "control0"
    assert control_of(runs[3], runs[2:]) is None
