"""The meter: exclusive stages, token means, files that survive."""

import json
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import trl_prorl.record.meter as meter_module
from trl_prorl.record.meter import JsonLines, Meter, StageTimer, gpu_row
from trl_prorl.record.run_files import read_jsonl


CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: clock.now)
    return clock


def test_a_second_belongs_to_the_innermost_stage_which_ends_when_its_body_raises(clock):
    timer = StageTimer(CPU)
    with timer.stage("update"):
        clock.now += 1
        with timer.stage("rollout"):
            clock.now += 2
            with pytest.raises(KeyError), timer.stage("ref"):
                clock.now += 4
                raise KeyError
            clock.now += 8
        clock.now += 16
    assert dict(timer.seconds) == {"update": 17.0, "rollout": 10.0, "ref": 4.0} and timer.stack == []


@pytest.mark.parametrize("processes", [1, 3])
def test_row_of_a_step(clock, processes):
    """Counts are sums over processes, as if further ones had done the same; means and times are not."""
    meter = Meter(CPU)
    meter.begin_step()
    with meter.timer.stage("ref"):
        clock.now += 3
    for kind, shape in (("ref", (2, 5)), ("policy", (4, 5))):
        forward = meter.counted(lambda **inputs: "scored", kind)
        assert forward(input_ids=torch.zeros(*shape)) == "scored"
    meter.add_mean("kl_ref", torch.tensor([[1.0, 9.0]]), torch.tensor([[1, 0]]))
    meter.add_mean("kl_ref", torch.tensor([[2.0, 6.0]]), torch.tensor([[1, 1]]))
    meter.add_total("kl_penalty", torch.tensor(0.5))
    meter.add_total("kl_penalty", torch.tensor(0.25))
    meter.add_average("clip_region_mean", 0.25)
    meter.add_average("clip_region_mean", 0.75)
    meter.add_tokens_in_loss(torch.tensor([[1, 1, 0], [1, 0, 0]]))  # a micro-batch, and its second pass
    meter.add_tokens_in_loss(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    meter.add_count("rows_skipped", torch.tensor(2))
    clock.now += 1
    row = meter.end_step(lambda tensor: processes * tensor, processes)
    assert row["kl_ref"] == 3.0 and row["kl_penalty"] == 0.75 and row["clip_region_mean"] == 0.5
    names = ["ref_forward_calls", "policy_forward_calls", "old_forward_calls", "rows_skipped"]
    names += ["tokens_processed_ref", "tokens_processed_policy", "tokens_per_second", "positions_per_second"]
    assert [row[name] for name in names] == [processes * one for one in (1, 1, 0, 2, 10, 20, 2.0, 5.0)]
    assert (row["time_ref"], row["time_update"], row["time_step"]) == (3.0, 1.0, 4.0)
    assert row["ref_time_fraction"] == 0.75
    assert "kl_old" not in row and "peak_memory_gib" not in row  # not measured


def test_means_over_processes_are_means_over_all_tokens():
    meter = Meter(CPU)
    meter.begin_step()
    meter.add_mean("kl_ref", torch.tensor([[1.0]]), torch.tensor([[1]]))
    other = torch.tensor([9.0, 3.0], dtype=torch.float64)  # three tokens of 3.0 elsewhere
    assert meter.peek_mean("kl_ref", lambda tensor: tensor + other) == 2.5


def test_a_resume_drops_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 8)) + '{"step": 8, "rew')
    log = JsonLines(path, keep=lambda row: row["step"] <= 5)
    log.write({"step": 6, "again": True})
    assert read_jsonl(path) == [{"step": s} for s in range(1, 6)] + [{"step": 6, "again": True}]


def test_a_new_run_keeps_the_record_of_an_older_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number in range(3):
        JsonLines(path).write({"step": number})
    assert read_jsonl(path) == [{"step": 2}]
    assert read_jsonl(tmp_path / "metrics.1.jsonl") == [{"step": 0}]
    assert read_jsonl(tmp_path / "metrics.2.jsonl") == [{"step": 1}]


@pytest.fixture
def card(monkeypatch):
    """A GPU that is not there: `card(synchronize=...)` says what torch answers."""

    def answers(**functions):
        idle = {"synchronize": lambda device: None, "reset_peak_memory_stats": lambda device: None}
        idle |= {"max_memory_allocated": lambda device: 2**30, "utilization": lambda device: 50}
        for name, function in (idle | functions).items():
            monkeypatch.setattr(torch.cuda, name, function)
        return torch.device("cuda", 0)

    return answers


def test_a_gpu_that_has_failed_does_not_hide_the_first_error(card):
    """To wait for it raises again: what a device-side assertion does."""
    failed, synchronize = RuntimeError("CUDA error: device-side assert triggered"), Mock()
    timer = StageTimer(card(synchronize=synchronize))
    for first, seen in ((KeyError, KeyError), (None, RuntimeError)):  # without another error it is one
        synchronize.side_effect = None
        with pytest.raises(seen), timer.stage("rollout"), timer.stage("ref"):
            synchronize.side_effect = failed
            if first:
                raise first


def test_a_card_of_which_nvml_knows_no_utilisation_is_measured_without_it(card):
    """A part of a card (MIG): NVML answers with an error of its own, which derives from `Exception` alone."""
    assert gpu_row(card(utilization=Mock(side_effect=Exception("Not Supported")))) == {"peak_memory_gib": 1.0}


def test_the_utilisation_of_a_gpu_is_a_mean_over_the_step(card, monkeypatch):
    """Three readings while the step lasts, 90, 80 and 70 %, and one of 0 at its end, where the GPU is idle."""
    values, over = [90, 80, 70], threading.Event()
    monkeypatch.setattr(meter_module.Utilization, "EVERY", 0.001)

    def utilization(device):
        assert device == gpu
        if threading.current_thread() is threading.main_thread():
            return 0
        if values:
            return values.pop(0)
        over.set()
        raise RuntimeError("no more")  # the thread ends, as where NVML fails

    gpu, threads = card(utilization=utilization), threading.active_count()
    meter = Meter(gpu)
    meter.begin_step()
    assert over.wait(10)
    meter.device = CPU  # of the counts, because there is no GPU
    monkeypatch.setattr(meter_module, "gpu_row", lambda device, readings: gpu_row(gpu, readings))
    assert meter.end_step(torch.clone)["gpu_utilization"] == 60.0
    assert threading.active_count() == threads


def test_the_readings_of_a_step_that_is_abandoned_end(card):
    threads, meter = threading.active_count(), Meter(card())
    meter.begin_step()
    assert threading.active_count() == threads + 1
    meter.abandon_step()
    assert threading.active_count() == threads


def test_the_peak_of_a_step_is_not_that_of_an_evaluation_before_it(card):
    peak = [20 * 2**30]  # of an evaluation
    gpu = card(max_memory_allocated=lambda device: max(peak), reset_peak_memory_stats=lambda device: peak.clear())
    Meter(gpu).begin_step()
    peak.append(3 * 2**30)  # of the step
    assert gpu_row(gpu)["peak_memory_gib"] == 3.0
