"""A part is called at its moments by being among the parts, and the trainer names none of them."""

import json
from pathlib import Path

import pytest

from trl_prorl.parts import Part, Parts


class Watcher(Part):
    """Notes its calls, and what the record holds by then."""

    def __init__(self, trainer, stops_at=None):
        self.trainer, self.stops_at, self.calls = trainer, stops_at, []

    def rows(self):
        path = Path(self.trainer.args.output_dir, "metrics.jsonl")
        return len(path.read_text().splitlines()) if path.exists() else 0

    def event(self, name, step, **more):
        return {"event": name, "step_requested": step, "step_applied": step, **more}

    def at_boundary(self, step):
        self.calls.append(("boundary", step))
        return self.event("boundary", step)

    def after_update(self, step):
        self.calls.append(("update", step, self.rows(), self.trainer.meter.open))

    def observe_step(self, step, row):
        self.calls.append(("step", step, self.rows(), row["step"]))
        return self.event("seen", step, action="stop") if step == self.stops_at else None


@pytest.mark.parametrize("stops_at, steps", [(None, 4), (3, 3)])
def test_the_moments_of_a_step_and_the_event_that_ends_a_run(make_trainer, stops_at, steps):
    trainer = make_trainer(beta=0.1, ref_reset_every=2, max_steps=4, num_iterations=2, save_strategy="no")
    part = trainer.parts["watcher"] = Watcher(trainer, stops_at)
    trainer.train()
    # The seconds of `after_update` belong to the step, which is still open; `observe_step` has its row.
    of_step = {n: [("update", n, n - 1, True), ("step", n, n, n)] for n in range(1, steps + 1)}
    boundaries = {1: [("boundary", 0)], 3: [("boundary", 2)]}
    assert part.calls == [call for n in of_step for call in boundaries.get(n, []) + of_step[n]]
    found = [
        (e["event"], e["step_applied"]) for e in map(json.loads, Path(trainer.args.output_dir, "events.jsonl").open())
    ]
    assert found == [("boundary", 0), ("boundary", 2), ("reset", 2)] + [("seen", 3)] * (stops_at == 3)
    assert Path(trainer.args.output_dir, "checkpoint-3").exists() == (stops_at == 3)


def test_events_come_in_the_order_of_the_parts_each_before_the_next_part_is_called():
    calls = []

    class Named(Part):
        def __init__(self, name, tells=True):
            self.name, self.tells = name, tells

        def at_boundary(self, step):
            calls.append(self.name)
            return {"event": self.name, "step": step} if self.tells else None

    parts = Parts(first=Named("first"), quiet=Named("quiet", tells=False), plain=Part(), last=Named("last"))
    for event in parts.at_boundary(7):
        calls.append((event["event"], event["step"]))
    assert calls == ["first", ("first", 7), "quiet", "last", ("last", 7)]
    assert list(parts.observe_step(7, {})) == []
