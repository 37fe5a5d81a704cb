"""The norm of an optimizer's update."""

import torch


class UpdateNorm:
    """
    Measures the norm of an optimizer's last update, over all its parameters.

    Args:
        optimizer (`torch.optim.Optimizer`): Gets hooks; its parameters are copied before every update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._value: float | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        optimizer.register_step_pre_hook(self._copy)
        optimizer.register_step_post_hook(self._measure)

    def _copy(self, optimizer, args, kwargs) -> None:
        params = [param.detach() for group in optimizer.param_groups for param in group["params"]]
        self._before = [(param, param.clone()) for param in params]

    def _measure(self, optimizer, args, kwargs) -> None:
        squares = [(param - old).float().square().sum() for param, old in self._before]
        self._value = torch.stack(squares).sum().sqrt().item()
        self._before = []

    def take(self) -> float | None:
        """Return the norm once; `None` if the optimizer has not updated since, as where a scaler left a step out."""
        value = self._value
        self._value = None
        return value
