"""How busy a GPU was in a step, and how much memory it took at most."""

import logging
import statistics
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import torch


logger = logging.getLogger(__name__)


class Utilization:
    """
    Reads how busy a GPU is, in percent, by a thread until `end`.

    There are no readings on a CPU, without NVML, nor where NVML has no such number, as for a part of a card (MIG).
    """

    EVERY = 0.5  # seconds; NVML's number is of the last sixth of a second to a second

    def __init__(self, device: torch.device):
        self.device = device
        self.readings = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if device.type == "cuda":
            self._thread.start()

    def _read(self) -> None:
        with suppress(Exception):  # NVML's own errors derive from it alone
            while not self._over.wait(self.EVERY):
                self.readings.append(torch.cuda.utilization(self.device))

    def end(self) -> list[float]:
        """Stop, and return the readings."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        return self.readings


def measure_gpu(device: torch.device, readings: Sequence[float] = ()) -> dict[str, float]:
    """
    Return GPU utilisation in percent and the step's peak memory in GiB; nothing on a CPU.

    The utilisation is the mean of [`Utilization`]'s readings and of one more.
    """
    if device.type != "cuda":
        return {}
    row = {"peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    torch.cuda.reset_peak_memory_stats(device)
    try:
        last = torch.cuda.utilization(device)
        row["gpu_utilization"] = statistics.fmean([*readings, last])
    except ModuleNotFoundError:
        tell_of_missing_nvml()
    except Exception:  # as in `Utilization`
        pass
    return row


@cache
def tell_of_missing_nvml() -> None:
    """Warn, once per process, what adds `gpu_utilization` to `metrics.jsonl`."""
    package = "amdsmi" if torch.version.hip else "nvidia-ml-py"
    logger.warning("gpu_utilization is not recorded because a package is missing: pip install %s.", package)
