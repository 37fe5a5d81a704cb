"""A trainer's pushes to the Hub. A failed upload does not stop a run."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from accelerate.utils import is_peft_model
from huggingface_hub import HfApi
from peft import PeftModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import PushInProgress

from ..errors import PushError
from ..run.files import STAGED
from ..run.log_files import BASE_ADAPTER
from .card import CARD_FILE, model_card, write_card
from .publish import (
    files_to_push,
    make_api,
    open_repo,
    push_command,
    stage,
    upload,
)


logger = logging.getLogger(__name__)


class Uploads:
    """
    `given`: the trainer's other arguments; `moves`: whether its reference moves; `tags`: for every model card. Raises
    `ValueError`, before a model is loaded: a push could not succeed.
    """

    def __init__(self, trainer, args, given: dict, moves: bool, tags: list[str]):
        self.trainer = trainer
        self.args = args
        self.tags = tags
        is_adapter = isinstance(given["model"], PeftModel)
        has_copy = args.beta != 0.0 and is_adapter and args.ref_model is None
        adapter = (moves and given.get("peft_config") is not None) or has_copy
        if args.hub_push_reference and not adapter:
            raise ValueError(
                "hub_push_reference=True pushes the adapter `ref`, which only a LoRA run with a moving reference "
                "has. Remove hub_push_reference."
            )
        self.api = make_api(args.hub_token)
        self.repo: str | None = None
        if args.push_to_hub and args.process_index == 0:
            self.repo = self._open_repo()

    def _open_repo(self, token: str | None = None, private: bool | None = None) -> str:
        args = self.args
        name = args.hub_model_id or Path(args.output_dir).resolve().name
        return open_repo(
            name,
            private=args.hub_private_repo if private is None else private,
            api=make_api(token or args.hub_token),
        )

    def open(self, token: str | None = None, private: bool | None = None) -> None:
        self.trainer.hub_model_id = self.repo or self._open_repo(token, private)
        self.trainer.push_in_progress = None

    def write_card(self, dataset_name, tags) -> None:
        trainer = self.trainer
        if not trainer.is_world_process_zero():
            return
        folder = weights_dir = trainer.run_dir
        if trainer._staging is not None:  # whose weights are not there yet: the folder's are earlier ones
            weights_dir = folder / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        card = model_card(
            folder,
            weights_dir,
            repo=trainer.hub_model_id or self.args.hub_model_id or folder.resolve().name,
            adapter=is_peft_model(trainer.accelerator.unwrap_model(trainer.model)),
            tags=[*self.tags, *_as_list(tags)],
            datasets=_as_list(dataset_name),
        )
        write_card(card, folder)

    def push(self, message, blocking, token, revision, private=None, dataset_name=None, tags=None, **kwargs):
        """Push `output_dir`, with the files of [`~trl_prorl.hub.publish`]."""
        trainer = self.trainer
        try:
            if trainer.hub_model_id is None:
                self.open(token, private)
            self.write_card(dataset_name, tags)
            staged = self._stage(Path(self.args.output_dir))
        except (ValueError, OSError) as error:
            again = push_command(trainer.run_dir)
            raise PushError(f"the run was not pushed: {error} It is saved on disk; push it with {again}.") from error
        api = make_api(token or self.args.hub_token)
        job = self._make_upload(api, staged, message, revision=revision or self.args.hub_revision)
        if blocking:
            return job()
        future = api.run_as_future(job)
        trainer.push_in_progress = PushInProgress([future])  # the next push waits for it
        return future

    def push_checkpoint(self, checkpoint: Path) -> None:
        """
        Push a checkpoint's model in the background, by `hub_strategy` also the complete checkpoint. A failure is
        logged; the next push includes it.
        """
        trainer = self.trainer
        strategy = self.args.hub_strategy
        if not trainer.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = trainer.push_in_progress is not None and not trainer.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        trainer.callback_handler.on_push_begin(self.args, trainer.state, trainer.control)
        whole = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: checkpoint.name}.get(strategy)
        try:
            staged = self._stage(checkpoint, whole)
        except (ValueError, OSError) as error:
            logger.warning("Training continues, but %s was not pushed: %s", checkpoint.name, error)
            return
        message = f"Training in progress, step {trainer.state.global_step}"
        job = self._make_upload(self.api, staged, message, self.args.hub_revision, whole)
        job = self.api.run_as_future(_log_failure, job)
        earlier = trainer.push_in_progress.jobs if busy else []
        trainer.push_in_progress = PushInProgress([*earlier, job])

    def _stage(self, model_dir: Path, whole: str | None = None) -> Path:
        """Copy the files to push, with a complete checkpoint for the folder `whole`."""
        folder = self.trainer.run_dir
        files = files_to_push(model_dir, folder, reference=self.args.hub_push_reference)
        files[CARD_FILE] = folder / CARD_FILE  # a checkpoint has PEFT's own
        if whole is not None:
            for path in model_dir.rglob("*"):
                if path.is_file():
                    files[f"{whole}/{path.relative_to(model_dir).as_posix()}"] = path
            for path in (folder / BASE_ADAPTER).glob("*"):
                files[f"{BASE_ADAPTER}/{path.name}"] = path
        return stage(files, folder / f"{STAGED}{self.trainer.state.global_step}")

    def _make_upload(self, api: HfApi, staged: Path, message: str, revision: str | None, whole: str | None = None):
        return partial(
            upload,
            self.trainer.hub_model_id,
            staged,
            message=message,
            run_dir=self.trainer.run_dir,
            revision=revision,
            api=api,
            replaced=whole,
        )


def _log_failure(job: Callable) -> None:
    try:
        job()
    except PushError as error:
        logger.warning("Training continues, but %s", error)


def _as_list(value: str | list[str] | None) -> list[str]:
    if isinstance(value, str):
        return [value]
    return value or []
