from eval.analysis.frame import Frame


def test_control_of_the_same_seed(read_run):
    runs = [read_run(variant, seed) for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))]
    of_a, other = Frame(runs).rows[2:]
    assert (of_a.control.name, other.control.name) == ("control1", "control0")
    assert (of_a.own_control.name, other.own_control) == ("control1", None)
    assert Frame(runs[2:]).rows[0].control is None
