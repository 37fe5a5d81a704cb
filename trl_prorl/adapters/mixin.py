"""How [`ProRLTrainer`] loads an adapter: into the parameters that it has, and one that has grown at its rank."""

from pathlib import Path

from .growing import CONFIG_FILE
from .kept_parameters import kept_parameters


WEIGHTS_FILE = "adapter_model.safetensors"


class AdapterMixin:
    """Part of [`ProRLTrainer`]: what a checkpoint's adapters are loaded into."""

    def _adapter_folders(self, folder: Path) -> dict[str, Path]:
        """Where the adapters of a saved model are, by name."""
        names = self.accelerator.unwrap_model(self.model).peft_config
        folders = {name: folder if name == "default" else folder / name for name in names}
        return {name: path for name, path in folders.items() if (path / WEIGHTS_FILE).is_file()}

    def _take_rank_of(self, checkpoint) -> None:
        """Give the adapters the rank that they have in a checkpoint."""
        if (growth := self.parts.get("growth")) is not None and Path(checkpoint, CONFIG_FILE).is_file():
            growth.take_rank_of(Path(checkpoint))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        self._take_rank_of(resume_from_checkpoint)
        with kept_parameters(self.accelerator.unwrap_model(self.model)):
            return super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self):
        best, policy = self.state.best_model_checkpoint, self.accelerator.unwrap_model(self.model)
        self._take_rank_of(best)
        if "growth" in self.parts:
            # Transformers loads the policy alone. Beside it the newest reference would lose its newer ranks.
            for name, folder in self._adapter_folders(Path(best)).items():
                if name != "default":
                    policy.load_adapter(folder, name)
        with kept_parameters(policy):
            return super()._load_best_model()
