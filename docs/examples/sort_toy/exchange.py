"""An optimizer that computes nothing: each update is the NumPy engine's, from files to files (docs/interchange.md)."""

from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from numpy_engine import engine


BETA1 = 0.9  # torch's defaults
BETA2 = 0.999
EPSILON = 1e-8


class EngineAdam:
    """
    Adam, by the engine.

    Args:
        weights (`dict[str, np.ndarray]`):
            Those with which the run begins.
        learning_rate (`float`):
            The learning rate.
        folder (`Path`):
            For the files of the update; the next update replaces them.

    Attributes:
        weights (`dict[str, np.ndarray]`):
            Those of the last outputs.
    """

    def __init__(self, weights: dict[str, np.ndarray], learning_rate: float, folder: Path):
        self.folder = folder
        self.updates = 0
        self._reset = None
        self._group = {"lr": learning_rate, "beta1": BETA1, "beta2": BETA2, "eps": EPSILON, "weight_decay": 0.0}
        self._group |= {"decoupled": False, "parameters": list(weights)}
        zeros = {name: np.zeros_like(array) for name, array in weights.items()}
        steps = {name: np.zeros(1, dtype=np.float32) for name in weights}
        self._state = {"parameters": weights, "exp_avg": zeros, "exp_avg_sq": zeros, "steps": steps}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return self._state["parameters"]

    def reset(self, mode: str, alpha: float) -> None:
        """Put a reset into the inputs of the next update."""
        self._reset = {"mode": mode, "alpha": alpha, "restarts_schedule": mode == "hard", "rewarmup_steps": 0}

    def step(self, gradients: dict[str, np.ndarray]) -> None:
        """Write the inputs of an update, let the engine make it, and read its outputs."""
        self.updates += 1
        kinds = {**self._state, "gradients": gradients}
        tensors = {f"{kind}/{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}
        dtypes = {name: "F32" if name.startswith("steps/") else "F64" for name in tensors}
        values = {"names": list(self.weights), "groups": [self._group], "clip_norm": 0.0, "update": self.updates}
        values |= {"grad_norm": engine.norm_of(gradients), "reset": self._reset}
        values |= dict.fromkeys(("growth", "schedule", "scaler"))
        engine.write_tensors(self.folder, "inputs", values, tensors, dtypes)
        with redirect_stdout(None):  # it says each update
            engine.main(self.folder)
        tensors, *_ = engine.read_tensors(self.folder, "outputs")
        self._state = {kind: {name: tensors[f"{kind}/{name}"] for name in self.weights} for kind in engine.STATE}
        self._reset = None
