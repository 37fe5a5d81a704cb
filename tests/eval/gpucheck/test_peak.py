"""The peak memory of an arm, although our trainer lets the device count anew in every step."""

from types import SimpleNamespace

import pytest
import torch

from eval.stepcost import measuring
from eval.stepcost.settings import parse
from eval.stepcost.trainers import Stopwatch
from trl_prorl.record.meter import gpu_row


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
    ending = watch.ending_a_step(lambda: gpu_row(cuda))  # as our trainer ends a step
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


def test_without_a_gpu_no_peak_is_measured():
    watch = Stopwatch(torch.device("cpu"), "cpu")
    watch.begin()
    watch.ending_a_step(lambda: None)()
    assert watch.peak() is None


@pytest.fixture
def arm(device, monkeypatch):
    """A trainer on that device: generation takes 7 GiB beyond what is held, and steps 3 and 5."""
    cuda = torch.device("cuda", 0)
    watch = Stopwatch(cuda, "wall")

    def train():
        for gib in (3, 5):
            device.begin_anew()  # as our trainer begins a step
            device.hold(gib)
            watch.ending_a_step(lambda: gpu_row(cuda))()

    def generate(*args):
        device.hold(7)
        return 1.0

    made = SimpleNamespace(watch=watch, train=train, generation_seconds=generate)
    monkeypatch.setattr(measuring, "make_trainer", lambda *args: made)


@pytest.mark.parametrize("generate, peak", [(True, 7.0), (False, 5.0)])
def test_on_a_gpu_an_arm_s_memory_is_the_gpu_s(arm, generate, peak):
    setting = (None, None, 2, False, generate)
    assert measuring.peak_memory("A", SimpleNamespace(), setting) == pytest.approx(peak)


def test_an_arm_s_peak_leaves_out_the_models_of_the_others(arm):
    found = measuring.measure({"A": ()}, SimpleNamespace(rounds=1), None, 2, False, True)
    assert found["A"]["peak"] == pytest.approx(5.0)


def test_a_device_whose_clock_would_not_wait_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--device", "cuda:1"])
    assert "invalid choice: 'cuda:1'" in capsys.readouterr().err
