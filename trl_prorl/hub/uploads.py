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

    Raises:
        `ValueError`: A push could not succeed. No model has been loaded.
    """

    def __init__(self, trainer, args, given: dict, moves: bool):
        self.trainer = trainer
        self.args = args
        is_adapter = isinstance(given["model"], PeftModel)
        adapter = (moves and given.get("peft_config") is not None) or (args.beta != 0.0 and is_adapter)
        if args.hub_push_reference and not adapter:
            raise ValueError(
                "hub_push_reference=True pushes the adapter `ref`, which only a LoRA run with a reference that moves "
                "has. Leave hub_push_reference out."
            )
        self.api = make_api(args.hub_token)
        self.repo: str | None = None
        if args.push_to_hub and args.process_index == 0:
            self.repo = self._open_repo(args.hub_token, args.hub_private_repo)

    def _open_repo(self, token: str | None, private: bool | None) -> str:
        api = self.api if token == self.args.hub_token else make_api(token)
        return open_repo(repo_name(self.args.hub_model_id, self.args.output_dir), private, api)

    def open(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository, if that was not done before the model was loaded."""
        if private is None:
            private = self.args.hub_private_repo
        self.trainer.hub_model_id = self.repo or self._open_repo(token or self.args.hub_token, private)
        self.trainer.push_in_progress = None

    def write_card(self, dataset_name=None, tags=None) -> None:
        """Write the card of the run so far, see [`~trl_prorl.hub.card`]."""
        if not self.trainer.is_world_process_zero():
            return
        datasets = _as_list(dataset_name)
        tags = _as_list(tags)
        trainer = self.trainer
        adapter = is_peft_model(trainer.accelerator.unwrap_model(trainer.model))
        output_dir = Path(self.args.output_dir)
        weights_dir = output_dir
        config_file = "adapter_config.json" if adapter else "config.json"
        if not (output_dir / config_file).is_file():  # the model is not saved yet
            weights_dir = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        card = model_card(
            trainer.run_dir,
            output_dir,
            repo=trainer.hub_model_id or self.args.hub_model_id,
            weights_dir=weights_dir,
            adapter=adapter,
            tags=[*trainer._tag_names, *tags],
            datasets=datasets,
        )
        write_card(card, output_dir)

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
        upload = partial(
            push,
            trainer.hub_model_id,
            files,
            message=message,
            again=again,
            revision=revision or self.args.hub_revision,
            api=api,
        )
        return upload() if blocking else api.run_as_future(upload)

    def push_checkpoint(self, checkpoint: Path) -> None:
        """
        Push the model of a checkpoint in the background, and with `hub_strategy` `checkpoint` or `all_checkpoints` the
        whole checkpoint too, because only a whole one can be resumed. A failure is logged, and the next push makes up
        for it.
        """
        trainer = self.trainer
        if not trainer.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = trainer.push_in_progress is not None and not trainer.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        trainer.callback_handler.on_push_begin(self.args, trainer.state, trainer.control)
        folder = Path(self.args.output_dir, f"{STAGED}{trainer.state.global_step}")
        try:
            files, whole = self._stage(checkpoint, folder)
        except (ValueError, OSError, shutil.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.warning("Training goes on, but %s is not pushed: %s", checkpoint.name, error)
            return
        done = f"epoch {int(trainer.state.epoch)}"
        if self.args.save_strategy == SaveStrategy.STEPS:
            done = f"step {trainer.state.global_step}"
        upload = partial(
            push_staged,
            trainer.hub_model_id,
            folder,
            files,
            whole,
            self._folder_of_checkpoint(checkpoint),
            f"Training in progress, {done}",
            again=push_command(trainer.run_dir),
            revision=self.args.hub_revision,
            api=self.api,
        )
        job = self.api.run_as_future(upload)
        if busy:
            trainer.push_in_progress.jobs.append(job)
        else:
            trainer.push_in_progress = PushInProgress([job])

    def _folder_of_checkpoint(self, checkpoint: Path) -> str | None:
        """Return the folder of the repository that takes the whole checkpoint; `None` if only its model is pushed."""
        if self.args.hub_strategy == HubStrategy.CHECKPOINT:
            return "last-checkpoint"
        if self.args.hub_strategy == HubStrategy.ALL_CHECKPOINTS:
            return checkpoint.name
        return None

    def _stage(self, checkpoint: Path, folder: Path) -> tuple[dict, dict]:
        """
        Copy what is pushed of a checkpoint into a folder, because the run goes on.

        Returns:
            The model's files, and those of the whole checkpoint (none if it is not pushed), by their paths in the
            repository.
        """
        files = files_to_push(checkpoint, self.trainer.run_dir, reference=self.args.hub_push_reference)
        files[CARD_FILE] = Path(self.args.output_dir, CARD_FILE)  # PEFT's own lies in the checkpoint
        files = stage(files, folder / "model")
        whole = {}
        name = self._folder_of_checkpoint(checkpoint)
        if name is not None:
            shutil.copytree(checkpoint, folder / name, copy_function=copy_or_link)
            for path in (folder / name).rglob("*"):
                if path.is_file():
                    whole[path.relative_to(folder).as_posix()] = path
        return files, whole


def push_staged(
    repo: str, staged: Path, files: dict, whole: dict, checkpoint: str | None, message: str, **settings
) -> None:
    """
    Push the files of a folder that was staged, and remove it. A failure is logged.

    Args:
        repo (`str`): The repository.
        staged (`Path`): The folder.
        files (`dict`), whole (`dict`): The model's files, and those of the whole checkpoint.
        checkpoint (`str`, *optional*): The folder of the repository that takes the whole checkpoint.
        message (`str`): The commit's message.
        settings: Of [`push`].
    """
    try:
        push(repo, files, message=message, **settings)
        if checkpoint is not None:
            push(repo, whole, message=f"{message}, checkpoint", folder=checkpoint, **settings)
    except PushError as error:
        logger.warning("Training goes on, but %s", error)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _as_list(value: str | list[str] | None) -> list[str]:
    if isinstance(value, str):
        return [value]
    return value or []
