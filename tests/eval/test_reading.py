"""A run folder as it is read."""

from trl_prorl.eval.run_folder.reading import load_run


def test_absent_is_not_zero_and_steps_are_sorted(make_run):
    rows = [{"step": 2, "reward": 0.0, "kl_ref": 0.1}, {"step": 1, "reward": 0.5}, {"step": 3, "kl_ref": None}]
    run = load_run(make_run("A", "A", rows))
    assert list(run.measured("reward").items()) == [(1, 0.5), (2, 0.0)]
    assert run.measured("kl_ref").to_dict() == {2: 0.1}
    assert run.measured("entropy") is run.total("entropy") is None


def test_resets_are_told_from_other_events(read_run):
    events = [{"event": "reset", "step_applied": 5}, {"event": "growth", "step_applied": 7}]
    resets = [read_run("A", seed, events=these).reset_steps() for seed, these in enumerate([events, [], None])]
    assert resets == [[5], [], None]
