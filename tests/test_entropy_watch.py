"""When a policy counts as collapsed."""

from run_record import read_rows

from trl_prorl.checkpoint.files import newest_complete
from trl_prorl.guards.entropy_watch import EntropyWatch


def test_a_collapse_is_told_once_and_again_only_after_a_recovery():
    watch = EntropyWatch(floor=0.5, patience=2)
    series = [0.4, 0.6, 0.4, None, 0.3, 0.2, 0.1, 0.5, 0.4, 0.4]
    assert [watch.observe(value) for value in series] == [False] * 4 + [True] + [False] * 4 + [True]
    again = EntropyWatch(floor=0.5, patience=2)
    again.observe(0.1)
    later = EntropyWatch(floor=0.5, patience=2)
    later.load_state_dict(again.state_dict(), {})
    assert later.observe(0.1)


def test_it_is_an_event_and_may_stop_the_run(run):
    for stop, steps in ((False, 6), (True, 3)):
        trainer = run(max_steps=6, entropy_floor=100.0, entropy_patience=3, entropy_stop=stop, save_strategy="steps")
        assert trainer.state.global_step == steps
        (event,) = read_rows(trainer, "events.jsonl")
        assert (event["event"], event["step_applied"], event["threshold"]) == ("entropy_collapse", 3, 100.0)
        assert event["value"] < 100.0 and event["action"] == ("stop" if stop else "log")
        if stop:
            assert newest_complete(trainer.args.output_dir)[0].name == "checkpoint-3"
