"""The benchmark's bookkeeping, and one small run of it; what it measures is asserted nowhere."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Model

from trl_prorl.eval import step_cost
from trl_prorl.eval.stepcost import measuring
from trl_prorl.eval.stepcost import settings as of_cost
from trl_prorl.eval.stepcost.settings import ARMS, BASELINE, MORE_ARMS, Batches, parse, settings
from trl_prorl.eval.stepcost.tables import ratio
from trl_prorl.eval.stepcost.trainers import Stopwatch, generation_seconds, make_trainer
from trl_prorl.record.gpu_usage import measure_gpu
from trl_prorl.record.json_lines import JsonLines


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(of_cost.SHAPES, "small", (16, 1, 2, 2, 32, 300))


def arguments(*further):
    sizes = ["--prompts", "2", "--num_generations", "2", "--micro_batch", "2", "--longest", "12", "--rounds", "1"]
    return [*sizes, "--device", "cpu", "--template", "3", *further]


def test_every_arm_gets_the_same_batches_and_scaled_lengths():
    args = parse(arguments("--longest", "4096"))
    once = Batches(args, 1.0)
    twice = Batches(args, 2.0)
    assert once.draw(7) == Batches(args, 1.0).draw(7) != once.draw(8)
    prompts, completions = once.draw(7)
    assert len(prompts) == len(completions) == 4
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    short, long = (
        sum(len(one) for number in range(200) for one in batches.draw(number)[1]) for batches in (once, twice)
    )
    assert long / short == pytest.approx(2.0, rel=0.05)
    fixed = Batches(args, 1.0, fixed=5)
    assert {len(one) for one in fixed.draw(7)[1]} == {5}


def test_ratios_are_of_pairs():
    """10/5, 30/10 and 20/20: the median of ratios is 2, though the ratio of medians were 2, 3 or 1 by pairs."""
    result = {BASELINE: {"phase": [10.0, 30.0, 20.0]}, "A": {"phase": [5.0, 10.0, 20.0]}}
    assert ratio(result, "A") == (2.0, 1.0, 3.0)


def test_settings():
    args = parse(arguments("--iterations", "1", "2", "--checkpointing", "both"))
    # With one pass B's penalty could do nothing, and is refused.
    assert ["B" in arms for _, arms, *_ in settings(args)] == [False, False, True, True]
    args = parse(arguments("--arms", "B packed", "TRL β=0"))
    ((_, arms, *_),) = settings(args)
    assert list(arms) == [BASELINE, "TRL β=0", "B packed"]
    args = parse(arguments("--mode", "growth", "--spread", "--lengths", "64", "--groups", "4", "8"))
    args.longest = 4096
    lengths = []
    for title, _, batches, *_ in settings(args):
        drawn = [len(one) for number in range(200) for one in batches.draw(number)[1]]
        lengths.append((title, sum(drawn) / len(drawn)))
    assert [title for title, _ in lengths] == ["64 tokens on average, G=8", "256 tokens on average, G=4"]
    assert [mean for _, mean in lengths] == [pytest.approx(64, rel=0.1), pytest.approx(256, rel=0.1)]


def test_a_run_leaves_a_table_a_chart_and_its_settings(tmp_path, capsys, caplog):
    step_cost.main(arguments("--micro_batch", "2", "--arms", "B packed", "--out", str(tmp_path)))
    written = json.loads((tmp_path / "arms.json").read_text())
    assert written["settings"]["rounds"] == 1
    for result in written["results"].values():
        assert {BASELINE, "B packed"} <= set(result)
        for values in result.values():
            assert len(values["phase"]) == 1
            assert values["update"] > 0
            assert values["phase"][0] == pytest.approx(values["scoring"] + values["update"])
            assert values["generation"] > 0
            assert values["whole"][0] == pytest.approx(values["phase"][0] + values["generated"][0])
    assert (tmp_path / "arms.png").read_bytes().startswith(b"\x89PNG")
    assert "B packed" in capsys.readouterr().out
    assert not [record for record in caplog.records if record.name.startswith("trl_prorl")]


@pytest.mark.parametrize("name", ["ours, all off", BASELINE])
def test_a_step_ends_when_its_row_is_written(tmp_path, monkeypatch, name):
    """A clock that moves by a second whenever a row is written."""
    written = []
    write = JsonLines.write
    monkeypatch.setattr(JsonLines, "write", lambda self, row: (write(self, row), written.append(row)))
    args = parse(arguments())
    trainer = make_trainer(name, (ARMS | MORE_ARMS)[name], args, Batches(args, 1.0), 2, False, str(tmp_path))
    trainer.watch.clock = lambda: float(len(written))
    trainer.train()
    rows = [row for row in written if "time_step" in row]
    assert len(rows) == (0 if name == BASELINE else 2)
    assert trainer.watch.seconds["step"] == len(rows)


@pytest.mark.parametrize("name", [BASELINE, "A", "B packed"])
def test_each_arm_generates_in_its_own_way_what_was_drawn(tmp_path, name, monkeypatch):
    """The lengths are those of the batch; rows that a forward computes, by the arm's own way."""
    args = parse(["--prompts", "2", "--num_generations", "4", "--micro_batch", "4", "--longest", "20"])
    batches = Batches(args, 1.0)
    trainer = make_trainer(name, ARMS[name], args, batches, 2, False, str(tmp_path))
    rows = []
    forward = Qwen2Model.forward

    def watched(self, input_ids=None, **kwargs):
        rows.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", watched)
    assert generation_seconds(trainer, batches, 0) > 0
    _, completions = batches.draw(0)
    lengths = [len(ids) for ids in completions]
    if "packed" in name:
        assert rows[0][0] == 2
        assert [shape[0] for shape in rows[1:]] == [
            sum(length > step for length in lengths) for step in range(1, max(lengths))
        ]
    else:
        assert {shape[0] for shape in rows} == {8}
        assert len(rows) == max(lengths)
    assert "generate" not in vars(trainer.accelerator.unwrap_model(trainer.model).get_base_model())


class Device:
    """A GPU's count of bytes, as torch keeps it."""

    held = peak = 2**30

    def hold(self, gib: float) -> None:
        self.peak = max(self.peak, self.held + int(gib * 2**30))

    def begin_anew(self, device=None) -> None:
        self.peak = self.held


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: made.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.begin_anew)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: made.held)
    return made


def test_the_peak_of_a_training_is_that_of_its_largest_step(device):
    cuda = torch.device("cuda", 0)
    watch = Stopwatch(cuda, "wall")
    ending = watch.time_end_of_step(lambda: measure_gpu(cuda))  # as our trainer ends a step
    device.hold(20)  # before it begins
    watch.begin()
    for gib in (3, 5, 4):
        watch.on_step_begin(None, None, None)
        device.hold(gib)
        ending()
    assert device.peak == 2**30  # all that the device still knows
    assert watch.peak() == 6.0
    watch.begin()
    assert watch.peak() == 1.0


@pytest.fixture
def arm(device, monkeypatch):
    """A trainer on that device: generation takes 7 GiB beyond what is held, and steps 3 and 5."""
    cuda = torch.device("cuda", 0)
    watch = Stopwatch(cuda, "wall")

    def train():
        for gib in (3, 5):
            device.begin_anew()  # as our trainer begins a step
            device.hold(gib)
            watch.time_end_of_step(lambda: measure_gpu(cuda))()

    def generate(*args):
        device.hold(7)
        return 1.0

    made = SimpleNamespace(watch=watch, train=train, generation_seconds=generate)
    monkeypatch.setattr(measuring, "make_trainer", lambda *args: made)


@pytest.mark.parametrize("generate, peak", [(True, 7.0), (False, 5.0)])
def test_on_a_gpu_an_arm_s_memory_is_the_gpu_s(arm, generate, peak):
    setting = (None, None, 2, False, generate)
    assert measuring.peak_memory("A", SimpleNamespace(), setting) == pytest.approx(peak)
