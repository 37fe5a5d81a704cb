"""The meter: exclusive stages, token means, what a GPU does, and what validation takes."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from datasets import Dataset
from run_record import read_rows as rows

from trl_prorl.run.meter import TOKENS_IN_LOSS, Meter, StageTimer, Utilization, measure_gpu
from trl_prorl.run.record import UpdateNorm


CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0 + clock.now)
    return clock


def test_a_second_belongs_to_the_innermost_stage_which_ends_when_its_body_raises(clock):
    timer = StageTimer(CPU)
    with timer.stage("update") as update:
        clock.now += 1
        with timer.stage("rollout"):
            clock.now += 2
            with pytest.raises(KeyError), timer.stage("ref"):
                clock.now += 4
                raise KeyError
            clock.now += 8
        clock.now += 16
    assert timer.seconds == {"update": 17.0, "rollout": 10.0, "ref": 4.0}
    assert update.seconds == 17.0
    assert timer.stack == []


def test_a_stage_between_two_steps_belongs_to_neither(clock):
    """As an evaluation's, whose seconds nobody has read when the next step begins."""
    timer = StageTimer(CPU)
    with timer.stage("rollout"):
        clock.now += 1
    timer.clear()
    with timer.stage("update"):
        clock.now += 2
    assert timer.seconds == {"update": 2.0}


@pytest.mark.parametrize("processes", [1, 3])
def test_row_of_a_step(clock, processes):
    """Counts are sums over processes, as if further ones had done the same; means and times are not."""
    meter = Meter(CPU)
    meter.begin_step()
    meter.timer.overhead = 0.25
    with meter.timer.stage("ref"):
        clock.now += 2
    with meter.timer.stage("meter"):
        clock.now += 1
    for kind, shape in (("ref", (2, 5)), ("policy", (4, 5))):
        forward = meter.counted(lambda **inputs: "scored", kind)
        assert forward(input_ids=torch.zeros(*shape)) == "scored"
    meter.add_means({"kl_ref": torch.tensor([[1.0, 9.0]])}, torch.tensor([[1, 0]]))
    meter.add_means({"kl_ref": torch.tensor([[2.0, 6.0]])}, torch.tensor([[1, 1]]))
    meter.add_total("kl_penalty", torch.tensor(0.5))
    meter.add_total("kl_penalty", torch.tensor(0.25))
    for tokens in (3, 5):  # of a micro-batch, and of another
        meter.add_count(TOKENS_IN_LOSS, torch.tensor(tokens))
    meter.add_count("rows_skipped", torch.tensor(2))
    clock.now += 1
    row = meter.end_step(lambda tensor: processes * tensor, processes)
    assert meter.micro_batch_tokens == [3 * processes, 5 * processes]
    calls = {"ref_forward_calls": 1, "policy_forward_calls": 1, "old_forward_calls": 0, "rows_skipped": 2}
    tokens = {"tokens_processed_ref": 10, "tokens_processed_policy": 20}
    speeds = {"tokens_per_second": 2.0, "positions_per_second": 5.0}
    expected = {name: processes * value for name, value in (calls | tokens | speeds).items()}
    expected |= {"kl_ref": 3.0, "kl_penalty": 0.75, "ref_time_fraction": 0.5, "time_ended": 1_000_000.0 + clock.now}
    expected |= {"time_ref": 2.0, "time_meter": 1.25, "time_update": 1.0, "time_step": 4.0}
    assert expected.items() <= row.items()
    assert not {"kl_old", "peak_memory_gib"} & row.keys()  # not measured


def test_means_over_processes_are_means_over_all_tokens():
    meter = Meter(CPU)
    meter.begin_step()
    meter.add_means({"kl_ref": torch.tensor([[1.0]])}, torch.tensor([[1]]))

    def with_another(sums):
        sums[:2] += torch.tensor([9.0, 3.0])  # three tokens of 3.0 elsewhere
        return sums

    assert meter.end_step(with_another, processes=2)["kl_ref"] == 2.5


@pytest.fixture
def card(monkeypatch):
    """A GPU that is not there: `card(utilization=...)` says what torch answers."""

    def answers(**functions):
        idle = {
            "Event": lambda **keys: Mock(elapsed_time=lambda end: 0.0),
            "current_stream": lambda device: None,
            "reset_peak_memory_stats": lambda device: None,
            "max_memory_allocated": lambda device: 2**30,
            "utilization": lambda device: 50,
        }
        for name, function in (idle | functions).items():
            monkeypatch.setattr(torch.cuda, name, function)
        return torch.device("cuda", 0)

    return answers


class Queue:
    """The work that a GPU was given: it begins when the work before it is done, while the host goes on."""

    def __init__(self, clock):
        self.clock = clock
        self.done_at = 0.0
        self.waits = 0

    def add(self, seconds):
        self.done_at = max(self.done_at, self.clock.now) + seconds

    def event(self, enable_timing):
        assert enable_timing
        event = Mock()

        def record(stream):
            event.at = max(self.done_at, self.clock.now)

        def synchronize():
            self.waits += 1
            self.clock.now = max(self.clock.now, event.at)

        def elapsed_time(end):
            assert self.clock.now >= end.at  # else torch raises
            return 1000 * (end.at - event.at)

        event.configure_mock(record=record, synchronize=synchronize, elapsed_time=elapsed_time)
        return event


def test_seconds_on_a_gpu_are_the_devices_and_it_is_waited_for_when_they_are_read(card, clock):
    queue = Queue(clock)
    timer = StageTimer(card(Event=queue.event))
    with timer.stage("update"):
        queue.add(2)
        with timer.stage("ref") as span:
            clock.now += 1  # the host works, and the device is not done with the stage before
            queue.add(4)
        clock.now += 8  # the device has nothing to do from 106 to 109
        queue.add(16)
    assert queue.waits == 0
    assert timer.seconds == {"update": 2.0 + 3.0 + 16.0, "ref": 4.0}
    assert span.seconds == 4.0
    assert queue.waits == 1


def test_the_utilisation_of_a_gpu_is_a_mean_over_the_step(card, monkeypatch):
    """Three readings while the step lasts, 90, 80 and 70 %, and one of 0 at its end, where the GPU is idle."""
    values = [90, 80, 70]
    over = threading.Event()
    monkeypatch.setattr(Utilization, "EVERY", 0.001)

    def utilization(device):
        assert device == gpu
        if threading.current_thread() is threading.main_thread():
            return 0
        if values:
            return values.pop(0)
        over.set()
        raise RuntimeError("no more")  # the thread ends, as where NVML fails

    gpu = card(utilization=utilization)
    threads = threading.active_count()
    meter = Meter(gpu)
    meter.begin_step()
    assert over.wait(10)
    meter.device = CPU  # of the counts, because there is no GPU
    monkeypatch.setattr("trl_prorl.run.meter.measure_gpu", lambda device, readings: measure_gpu(gpu, readings))
    assert meter.end_step(torch.clone)["gpu_utilization"] == 60.0
    assert threading.active_count() == threads


def test_the_peak_of_a_step_is_not_that_of_an_evaluation_before_it(card):
    peak = [20 * 2**30]  # of an evaluation
    gpu = card(max_memory_allocated=lambda device: max(peak), reset_peak_memory_stats=lambda device: peak.clear())
    Meter(gpu).begin_step()
    peak.append(3 * 2**30)  # of the step
    assert measure_gpu(gpu)["peak_memory_gib"] == 3.0


PROMPTS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(4)]})
KEYS = {"per_device_eval_batch_size": 4, "num_generations_eval": 2, "eval_strategy": "steps", "eval_steps": 2}


@pytest.fixture
def slow_evaluation(monkeypatch):
    """A clock of its own: an evaluation takes exactly 1000 seconds."""
    from trl import GRPOTrainer

    real = time.perf_counter
    ahead = [0.0]
    evaluate = GRPOTrainer.evaluate

    def slowly(self, *args, **kwargs):
        ahead[0] += 1000.0
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "evaluate", slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: real() + ahead[0])


def test_the_time_of_validation_is_in_its_own_row(run, slow_evaluation):
    keys = KEYS | {"max_steps": 5, "eval_on_start": True, "trainer_kwargs": {"eval_dataset": PROMPTS}}
    trainer = run(**keys)
    evaluations = rows(trainer, "evaluations.jsonl")
    assert [(row["step"], row["time_eval"] // 1000) for row in evaluations] == [(0, 1), (2, 1), (4, 1), (5, 1)]
    assert all(row["time_step"] < 1000 for row in rows(trainer))
    seconds = ("runtime", "per_second", "preparation_time")
    assert not [name for row in evaluations for name in row if name.endswith(seconds)]


def test_the_norm_of_an_update_is_told_once():
    """A step that a scaler leaves out has none, and not that of the step before."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    norm = UpdateNorm(optimizer)
    assert norm.take() is None
    parameter.grad = torch.tensor([6.0, 8.0])
    optimizer.step()
    assert norm.take() == pytest.approx(5.0)
    assert norm.take() is None
