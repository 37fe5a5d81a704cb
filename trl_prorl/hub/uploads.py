"""What a trainer pushes to the Hub: its own card and choice of files, and no run lost to a failed upload."""

import logging
import shutil
from functools import partial
from pathlib import Path

from accelerate.utils import is_peft_model
from peft import PeftModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy
from transformers.utils import PushInProgress

from ..errors import PushError
from ..files import STAGED
from .card import CARD_FILE, model_card, write_card
from .publish import copy_or_link, files_to_push, make_api, open_repo, push, push_command, repo_name, stage


logger = logging.getLogger(__name__)


class Uploads:
    """
    The effect of TRL's `push_to_hub` settings on a trainer.

    Args:
        trainer ([`ProRLTrainer`]): The trainer, which is about to be made.
        args ([`ProRLConfig`]), given (`dict`), moves (`bool`):
            Its configuration and other arguments, and whether its reference moves.

    Raises `ValueError`: a push could not succeed. No model has been loaded.
    """

    def __init__(self, trainer, args, given: dict, moves: bool):
        self.trainer, self.args = trainer, args
        is_adapter = isinstance(given["model"], PeftModel)
        adapter = (moves and given.get("peft_config") is not None) or (args.beta != 0.0 and is_adapter)
        if args.hub_push_reference and not adapter:
            raise ValueError(
                "hub_push_reference=True pushes the adapter `ref`, which only a LoRA run with a reference that moves "
                "has. Leave hub_push_reference out."
            )
        self.api, self.repo = make_api(args.hub_token), None
        if args.push_to_hub and args.process_index == 0:
            self.repo = self._opened(args.hub_token, args.hub_private_repo)

    def _opened(self, token: str | None, private: bool | None) -> str:
        api = self.api if token == self.args.hub_token else make_api(token)
        return open_repo(repo_name(self.args.hub_model_id, self.args.output_dir), private, api)

    def open(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository, if that was not done before the model was loaded."""
        private = self.args.hub_private_repo if private is None else private
        self.trainer.hub_model_id = self.repo or self._opened(token or self.args.hub_token, private)
        self.trainer.push_in_progress = None

    def write_card(self, dataset_name=None, tags=None) -> None:
        """Write the card of the run so far, see [`~trl_prorl.hub.card`]."""
        if not self.trainer.is_world_process_zero():
            return
        datasets = [dataset_name] if isinstance(dataset_name, str) else dataset_name or []
        tags = [tags] if isinstance(tags, str) else tags or []
        trainer = self.trainer
        adapter = is_peft_model(trainer.accelerator.unwrap_model(trainer.model))
        output_dir = Path(self.args.output_dir)
        saved = (output_dir / ("adapter_config.json" if adapter else "config.json")).is_file()
        weights = output_dir if saved else output_dir / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        of_model = {"repo": trainer.hub_model_id or self.args.hub_model_id, "weights_dir": weights, "adapter": adapter}
        metadata = {"tags": [*trainer._tag_names, *tags], "datasets": datasets}
        write_card(model_card(trainer.run_dir, output_dir, **of_model, **metadata), output_dir)

    def push(self, message, blocking=True, token=None, revision=None, private=None, dataset_name=None, tags=None):
        """Push what `output_dir` holds, with the files of [`~trl_prorl.hub.publish`] in one commit."""
        trainer = self.trainer
        again = push_command(trainer.run_dir)
        try:
            if trainer.hub_model_id is None:
                self.open(token, private)
            self.write_card(dataset_name, tags)
            files = files_to_push(self.args.output_dir, trainer.run_dir, reference=self.args.hub_push_reference)
        except ValueError as error:
            raise PushError(f"the run is not pushed: {error} It is on disk; push it with {again}.") from error
        trainer._finish_current_push()
        api = self.api if token is None else make_api(token)

        settings = {"message": message, "again": again, "revision": revision or self.args.hub_revision, "api": api}
        upload = partial(push, trainer.hub_model_id, files, **settings)
        return upload() if blocking else api.run_as_future(upload)

    def push_checkpoint(self, checkpoint: Path) -> None:
        """
        Push the model of a checkpoint in the background, and with `hub_strategy` `checkpoint` or `all_checkpoints` the
        whole checkpoint too, because only a whole one can be resumed. A failure is logged, and the next push makes up
        for it.
        """
        trainer, strategy = self.trainer, self.args.hub_strategy
        if not trainer.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = trainer.push_in_progress is not None and not trainer.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        trainer.callback_handler.on_push_begin(self.args, trainer.state, trainer.control)
        done = f"epoch {int(trainer.state.epoch)}"
        if self.args.save_strategy == SaveStrategy.STEPS:
            done = f"step {trainer.state.global_step}"
        folder = Path(self.args.output_dir, f"{STAGED}{trainer.state.global_step}")
        name = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: checkpoint.name}.get(strategy)
        try:
            files = files_to_push(checkpoint, trainer.run_dir, reference=self.args.hub_push_reference)
            files[CARD_FILE] = Path(self.args.output_dir, CARD_FILE)  # PEFT's own lies in the checkpoint
            files, whole = stage(files, folder / "model"), {}
            if name is not None:
                shutil.copytree(checkpoint, folder / name, copy_function=copy_or_link)
                paths = (path for path in (folder / name).rglob("*") if path.is_file())
                whole = {path.relative_to(folder).as_posix(): path for path in paths}
        except (ValueError, OSError, shutil.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.warning("Training goes on, but %s is not pushed: %s", checkpoint.name, error)
            return
        settings = {"again": push_command(trainer.run_dir), "revision": self.args.hub_revision, "api": self.api}
        message, repo = f"Training in progress, {done}", trainer.hub_model_id

        def upload():
            try:
                push(repo, files, message=message, **settings)
                if name is not None:
                    push(repo, whole, message=f"{message}, checkpoint", folder=name, **settings)
            except PushError as error:
                logger.warning("Training goes on, but %s", error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        job = self.api.run_as_future(upload)
        if busy:
            trainer.push_in_progress.jobs.append(job)
        else:
            trainer.push_in_progress = PushInProgress([job])
