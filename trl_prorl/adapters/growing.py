"""Growth on a schedule: the rank of every adapter of a run, and the optimizer's state with it."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ..parts import Part, make_event
from ..record.run_files import GROWTH, read_json
from .growth import CONFIG_FILE, change_rank, draw_new_rows, list_factors, migrate_state, random_state, set_factors


WEIGHTS_FILE = "adapter_model.safetensors"


class Growth(Part):
    """
    Gives more ranks to the policy's adapter and its frozen copies.

    Growth is requested every so many optimizer steps, and applied at the next generation boundary.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): The trainer's arguments.
        policy ([`~peft.PeftModel`]): The policy.
        copies (`Iterable[dict[str, torch.Tensor]]`): Copies of trained parameters by name. They keep the parameters'
            shapes: their entries are replaced.
        timer ([`~trl_prorl.record.meter.StageTimer`]): Counts the seconds.
    """

    def __init__(self, args, policy: PeftModel, copies: Iterable[dict[str, torch.Tensor]], timer):
        self.every = args.lora_growth_every
        self.step = args.lora_growth_step
        self.largest = args.lora_growth_max_rank
        self.seed = args.seed
        self.policy = policy
        self.optimizer = None
        self.copies = [*copies]
        self.timer = timer
        self.migrate = migrate_state  # what becomes of a factor's state; an experiment may set another
        self._first = self.rank
        self.begin()

    @property
    def rank(self) -> int:
        """The rank of every layer's adapter, now."""
        return self.policy.peft_config["default"].r

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    def begin(self) -> None:
        self._requested: int | None = None

    def update(self, step: int, model) -> None:
        """See whether growth is due."""
        if step % self.every == 0 and self.rank < self.largest:
            self._requested = step

    def boundary(self, step: int) -> dict[str, Any] | None:
        """Grow, if that is due."""
        requested = self._requested
        self._requested = None
        if requested is None or self.rank >= self.largest:  # a resume may have lowered the largest
            return None
        before = self.rank
        rank = min(self.rank + self.step, self.largest)
        generator = random_state(self.seed, step)
        init = self.policy.peft_config["default"].init_lora_weights
        rows = {}
        for factor in list_factors(self.policy):
            if factor.adapter == "default" and factor.side == "A":
                rows[factor.place] = draw_new_rows(factor, rank, init, generator)
        seconds = self._set_rank(rank, rows)
        event = make_event(GROWTH, requested, step, "periodic", requested, self.every)
        return {**event, "rank_before": before, "rank": rank, **seconds, "world_size": 1}

    def _set_rank(self, rank: int, rows: Mapping[str, torch.Tensor] | None = None) -> dict[str, float]:
        """Give everything the new rank, or, if something is not understood, nothing. Return the seconds it took."""
        rows = rows or {}
        factors = list_factors(self.policy)
        own = [factor for factor in factors if factor.adapter == "default"]
        with self.timer.stage("reset") as copy:
            values = [(factor, change_rank(factor, factor.linear.weight.detach(), rank, rows)) for factor in factors]
            copied = []
            for tensors in self.copies:
                new = {factor.name: change_rank(factor, tensors[factor.name], rank, rows) for factor in own}
                copied.append((tensors, new))
        with self.timer.stage("reset") as migration:
            states = self.optimizer.state if self.optimizer is not None else {}
            for factor in factors:
                weight = factor.linear.weight
                if weight in states:
                    state = states[weight]
                    copied.append((state, self.migrate(state, weight.shape, factor.axis, rank)))
        # Nothing was written so far, and from here on nothing is computed that could fail.
        set_factors(self.policy, values, rank)
        for old, new in copied:
            old.update(new)
        return {"seconds_copy": copy.seconds, "seconds_optimizer": migration.seconds}

    def before_load(self, checkpoint: Path) -> None:
        """
        Give the adapters the rank, and the frozen ones the values, that they have in a checkpoint.

        Raises:
            `ValueError`: This run's adapter could not have grown into that one.
        """
        if not (checkpoint / CONFIG_FILE).is_file():
            return
        saved = read_json(checkpoint / CONFIG_FILE)
        mine = self.policy.peft_config["default"]
        root = math.sqrt if saved.get("use_rslora") else float
        scaling = mine.lora_alpha / root(mine.r)
        has_scaling = math.isclose(saved["lora_alpha"] / root(saved["r"]), scaling, rel_tol=1e-9)
        has_kind = bool(saved.get("use_rslora")) == bool(mine.use_rslora)
        if saved["r"] < self._first or not has_scaling or not has_kind:
            raise ValueError(
                f"{checkpoint} has an adapter of rank {saved['r']} with lora_alpha {saved['lora_alpha']:g}, into "
                f"which an adapter of rank {self._first} with a scaling of {scaling:g} cannot grow. Restore lora_r "
                "and lora_alpha, or start a new run."
            )
        if saved["r"] != mine.r:
            self._set_rank(saved["r"])
        # Transformers loads the policy's alone as the best model. The newest reference would lose its newer ranks.
        for name in self.policy.peft_config:
            if name != "default" and (checkpoint / name / WEIGHTS_FILE).is_file():
                self.policy.load_adapter(checkpoint / name, name)

    # As a part, see parts.py. The weights are in the adapter's own files.

    def state_dict(self) -> dict[str, Any]:
        return {"requested": self._requested}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._requested = state["requested"]
