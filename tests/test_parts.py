"""A part is called at its moments by being among the parts, and the trainer names none of them."""

from pathlib import Path

import pytest
import torch
from run_record import read_rows

from trl_prorl.parts import Part, Parts


def told(name, step, **more):
    return {"event": name, "step_requested": step, "step_applied": step, **more}


class Watcher(Part):
    """Notes its calls, and how many rows the record holds by then."""

    def __init__(self, trainer, stops_at=None):
        self.trainer = trainer
        self.stops_at = stops_at
        self.calls = []

    def on_generation(self, step):
        self.calls.append(("boundary", step))
        return told("boundary", step)

    def on_batch(self, batch):
        self.calls.append(("batch", len(batch["advantages"])))

    def on_loss(self, found):
        self.calls.append(("micro-batch", found.logps.shape == found.batch["completion_mask"].shape))

    def on_backward(self, parameters):
        gradients = [param.grad for param in parameters.values() if param.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.calls.append(("gradients", norm.item()))

    def on_pre_optimizer_step(self, step, norm, rate):
        unclipped = self.calls.pop()[1]
        self.calls.append(("next", step, float(norm) == pytest.approx(unclipped, rel=1e-5), rate))

    def on_step_end(self, step, parameters):
        self.calls.append(("update", step, len(read_rows(self.trainer)), self.trainer.meter.open))

    def on_row(self, step, row):
        self.calls.append(("row", step, len(read_rows(self.trainer)), row["step"]))
        return told("seen", step, action="stop") if step == self.stops_at else None


@pytest.mark.parametrize("stops_at, steps", [(None, 4), (3, 3)])
def test_the_moments_of_a_step_and_the_event_that_ends_a_run(make_trainer, stops_at, steps):
    trainer = make_trainer(beta=0.1, ref_reset_every=2, max_steps=4, num_iterations=2, save_strategy="no")
    part = trainer.parts["watcher"] = Watcher(trainer, stops_at)
    trainer.train()
    # The seconds of `update` belong to the step, which is still open; `row` has its row.
    of_step = {
        n: [("micro-batch", True), ("next", n, True, 5e-3), ("update", n, n - 1, True), ("row", n, n, n)]
        for n in range(1, steps + 1)
    }
    sampled = {n: [("boundary", n - 1), ("batch", 8)] for n in (1, 3)}
    assert part.calls == [call for n in of_step for call in sampled.get(n, []) + of_step[n]]
    found = [(e["event"], e["step_applied"]) for e in read_rows(trainer, "events.jsonl")]
    seen = [("seen", 3)] if stops_at == 3 else []
    assert found == [("boundary", 0), ("reset", 2), ("boundary", 2), *seen]
    assert Path(trainer.args.output_dir, "checkpoint-3").exists() == (stops_at == 3)


def test_events_come_in_the_order_of_the_parts_each_before_the_next_part_is_called(make_trainer):
    calls = []

    class Named(Part):
        def __init__(self, name, tells=True):
            self.name = name
            self.tells = tells

        def on_generation(self, step):
            calls.append(self.name)
            return told(self.name, step) if self.tells else None

        def on_event(self, event):
            if self.name == "last":
                calls.append(event["event"] + " is told")

    trainer = make_trainer(max_steps=1)
    trainer.parts |= {"first": Named("first"), "second": Named("second")}
    trainer.parts |= {"quiet": Named("quiet", tells=False), "last": Named("last")}
    trainer.train()
    assert calls == ["first", "first is told", "second", "second is told", "quiet", "last", "last is told"]


def test_a_part_without_memory_is_in_no_checkpoint():
    class Remembers(Part):
        remembers = ("value",)
        value = 1

    parts = Parts(plain=Part(), remembers=Remembers())
    assert parts.state_dict() == {"remembers": {"value": 1}}
    parts.load_state_dict({"remembers": {"value": 2}})
    assert parts["remembers"].value == 2
    parts.load_state_dict({})
    assert parts["remembers"].value == 2
