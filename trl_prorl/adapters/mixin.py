"""
How [`ProRLTrainer`] saves and loads an adapter whose initialisation has changed the model, see
[`~trl_prorl.adapters.initialisation`], and loads one that has grown.
"""

import logging
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .initialisation import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    changes_model,
    convert_files,
    factors_of,
    is_convertible,
    reloads_by_itself,
    restore_files,
    take_from_model,
)
from .kept_parameters import kept_parameters


logger = logging.getLogger(__name__)


class AdapterMixin:
    """Part of [`ProRLTrainer`]: on disk, every adapter belongs to the model that the run was given."""

    _initial_factors: dict[str, torch.Tensor] | None = None  # of the adapter `default`, if saving needs them

    def _remember_initialisation(self, config: Any, given_wrapped: bool, moves: bool) -> None:
        """Look at the adapter of a trainer that has just been built."""
        if not changes_model(config):
            return
        init = config.init_lora_weights
        policy = self.accelerator.unwrap_model(self.model)
        if self.beta != 0.0 and not moves and not given_wrapped:
            logger.warning(
                "beta=%s with init_lora_weights=%r: TRL's reference is the model without the adapter, from which the "
                "initialisation has taken a part, and not the model that the run begins with. Set ref_reset_every to "
                "more than max_steps: the reference is then a copy of the first adapter that never moves.",
                self.beta,
                init,
            )
        whole = all(param.numel() for param in policy.parameters() if param.requires_grad)  # ZeRO-3 takes them apart
        if is_convertible(config) and not given_wrapped and whole:
            self._initial_factors = factors_of(policy)
        elif not reloads_by_itself(config):
            logger.warning(
                "The adapter is saved as PEFT saves it, and with init_lora_weights=%r PEFT does not load it onto the "
                "model that it was trained on. Pass the model and a peft_config, instead of a PeftModel, and do not "
                "use ZeRO-3.",
                init,
            )

    def _adapter_folders(self, folder: Path) -> dict[str, Path]:
        """Where the adapters of a saved model are, by name."""
        names = self.accelerator.unwrap_model(self.model).peft_config
        folders = {name: folder if name == "default" else folder / name for name in names}
        return {name: path for name, path in folders.items() if (path / WEIGHTS_FILE).is_file()}

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict=state_dict)
        if self._initial_factors is not None and self.args.should_save:
            for folder in self._adapter_folders(Path(output_dir or self.args.output_dir)).values():
                convert_files(folder, self._initial_factors)

    @contextmanager
    def _as_trained(self, checkpoint: str):
        """A folder with the adapters of a checkpoint as they were trained; afterwards the model fits them."""
        initial = {}
        with tempfile.TemporaryDirectory() as folder:
            for name, path in self._adapter_folders(Path(checkpoint)).items():
                initial[name] = restore_files(path, Path(folder) if name == "default" else Path(folder, name))
            yield folder
        then = initial.get("default")
        if then is not None:
            take_from_model(self.accelerator.unwrap_model(self.model), then, self._initial_factors)
            self._initial_factors = then

    def _take_rank_of(self, checkpoint) -> None:
        """Give the adapters the rank that they have in a checkpoint."""
        if (growth := self.parts.get("growth")) is not None and Path(checkpoint, CONFIG_FILE).is_file():
            growth.take_rank_of(Path(checkpoint))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        self._take_rank_of(resume_from_checkpoint)
        policy = self.accelerator.unwrap_model(self.model)
        if self._initial_factors is None or not Path(resume_from_checkpoint, CONFIG_FILE).is_file():
            with kept_parameters(policy):
                return super()._load_from_checkpoint(resume_from_checkpoint, model)
        with self._as_trained(resume_from_checkpoint) as folder, kept_parameters(policy):
            super()._load_from_checkpoint(folder, model)

    def _load_best_model(self):
        best, policy = self.state.best_model_checkpoint, self.accelerator.unwrap_model(self.model)
        self._take_rank_of(best)
        if "growth" in self.parts:
            # Transformers loads the policy alone. Beside it the newest reference would lose its newer ranks.
            for name, folder in self._adapter_folders(Path(best)).items():
                if name != "default":
                    policy.load_adapter(folder, name)
        if self._initial_factors is None or not Path(best, CONFIG_FILE).is_file():
            with kept_parameters(policy):
                return super()._load_best_model()
        with self._as_trained(best) as folder, kept_parameters(policy):
            self.state.best_model_checkpoint = folder
            try:
                super()._load_best_model()
            finally:
                self.state.best_model_checkpoint = best
