"""How [`ProRLTrainer`] pushes to the Hub: its own card and choice of files, and no run lost to a failed upload."""

import logging
import shutil
from pathlib import Path

from accelerate.utils import is_peft_model
from peft import PeftModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy
from transformers.utils import PushInProgress
from trl.trainer.utils import get_config_model_id

from ..config import ProRLConfig
from ..errors import PushError
from ..files import STAGED
from ..record.run_id import write_run_id
from .card import CARD_FILE, model_card, write_card
from .publish import (
    copy_or_link,
    files_to_push,
    make_api,
    open_repo,
    push,
    push_command,
    push_folder,
    repo_name,
    stage,
)


logger = logging.getLogger(__name__)


class HubMixin:
    """Part of [`ProRLTrainer`]: the effect of TRL's `push_to_hub` settings."""

    def _check_hub(self, args: ProRLConfig, given: dict, moves: bool) -> None:
        """Refuse a push that could not succeed, before a model is loaded."""
        adapter = (
            moves
            and given.get("peft_config") is not None
            or args.beta != 0.0
            and isinstance(given["model"], PeftModel)
        )
        if args.hub_push_reference and not adapter:
            raise ValueError(
                "hub_push_reference=True pushes the adapter `ref`, which only a LoRA run with a reference that moves "
                "has. Leave hub_push_reference out."
            )
        self._hub_api, self._hub_repo = make_api(args.hub_token), None
        if args.push_to_hub and args.process_index == 0:
            self._hub_repo = self._open_repo(args, args.hub_token, args.hub_private_repo)

    def _open_repo(self, args: ProRLConfig, token: str | None, private: bool | None) -> str:
        api = self._hub_api if token == args.hub_token else make_api(token)
        return open_repo(repo_name(args.hub_model_id, args.output_dir), private, api)

    def _base_name(self) -> str | None:
        """Hub name or folder of the model that the run began from."""
        given = next((part.model_name_or_path for part in self.recipe if hasattr(part, "model_name_or_path")), None)
        return given or get_config_model_id(self.accelerator.unwrap_model(self.model).config) or None

    def init_hf_repo(self, token=None, private=None):
        if self.is_world_process_zero():
            private = self.args.hub_private_repo if private is None else private
            self.hub_model_id = self._hub_repo or self._open_repo(self.args, token or self.args.hub_token, private)
            self.push_in_progress = None

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the card of the run so far, see [`~trl_prorl.hub.card`]. A failure to write it does not stop a run."""
        try:
            self._write_card(dataset_name, tags)
        except ValueError as error:
            logger.warning("The model card is not up to date: %s", error)

    def _write_card(self, dataset_name=None, tags=None) -> None:
        if not self.is_world_process_zero():
            return
        datasets = [dataset_name] if isinstance(dataset_name, str) else dataset_name or []
        tags = [tags] if isinstance(tags, str) else tags or []
        adapter = is_peft_model(self.accelerator.unwrap_model(self.model))
        output_dir = Path(self.args.output_dir)
        saved = (output_dir / ("adapter_config.json" if adapter else "config.json")).is_file()
        card = model_card(
            self.run_dir,
            output_dir,
            repo=self.hub_model_id or self.args.hub_model_id,
            weights_dir=output_dir if saved else output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}",
            adapter=adapter,
            tags=[*self._tag_names, *tags],
            datasets=datasets,
        )
        write_card(card, output_dir)

    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call=True)
        if output_dir is None or Path(output_dir) == Path(self.args.output_dir):
            self.create_model_card()  # PEFT has written its own
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, *args, **kwargs):
        token, self.args.hub_token = self.args.hub_token, None  # the arguments are pickled beside the weights
        try:
            super()._save(*args, **kwargs)
        finally:
            self.args.hub_token = token
        if not self.args.should_save:  # Trainer calls this in every process, where the folder may not be there yet
            return
        output_dir = args[0] if args else kwargs.get("output_dir")
        write_run_id(self.args.output_dir if output_dir is None else output_dir, self._run_id)

    def push_to_hub(
        self,
        commit_message="End of training",
        blocking=True,
        token=None,
        revision=None,
        private=None,
        *,
        dataset_name=None,
        tags=None,
        **kwargs,
    ):
        """
        As [`~transformers.Trainer.push_to_hub`], with the files of [`~trl_prorl.hub.publish`] in one commit.

        Raises:
            [`~trl_prorl.errors.PushError`]: the upload failed; everything is on disk.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        again = push_command(self.run_dir)
        try:
            if self.hub_model_id is None:
                self.init_hf_repo(token=token, private=private)
            self._write_card(dataset_name, tags)
            files = files_to_push(self.args.output_dir, self.run_dir, reference=self.args.hub_push_reference)
        except ValueError as error:
            raise PushError(f"the run is not pushed: {error} It is on disk; push it with {again}.") from error
        self._finish_current_push()
        api = self._hub_api if token is None else make_api(token)

        def upload():
            return push(
                self.hub_model_id,
                files,
                message=commit_message,
                again=again,
                revision=revision or self.args.hub_revision,
                api=api,
            )

        return upload() if blocking else api.run_as_future(upload)

    def _push_from_checkpoint(self, checkpoint_folder):
        """
        Push the model of a checkpoint in the background, and with `hub_strategy` `checkpoint` or `all_checkpoints` the
        whole checkpoint too, because only a whole one can be resumed. A failure is logged, and the next push makes up
        for it.
        """
        if self._aside is not None:  # it gets its name first
            return
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        done = f"epoch {int(self.state.epoch)}"
        if self.args.save_strategy == SaveStrategy.STEPS:
            done = f"step {self.state.global_step}"
        folder = Path(self.args.output_dir, f"{STAGED}{self.state.global_step}")
        checkpoint = Path(checkpoint_folder)
        name = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: checkpoint.name}.get(strategy)
        try:
            files = files_to_push(checkpoint, self.run_dir, reference=self.args.hub_push_reference)
            files[CARD_FILE] = Path(self.args.output_dir, CARD_FILE)  # PEFT's own lies in the checkpoint
            files = stage(files, folder / "model")
            if name is not None:
                shutil.copytree(checkpoint, folder / name, copy_function=copy_or_link)
        except (ValueError, OSError, shutil.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.warning("Training goes on, but %s is not pushed: %s", checkpoint.name, error)
            return
        repo, revision, api = self.hub_model_id, self.args.hub_revision, self._hub_api
        again = push_command(self.run_dir)

        def upload():
            message = f"Training in progress, {done}"
            try:
                push(repo, files, message=message, again=again, revision=revision, api=api)
                if name is not None:
                    push_folder(repo, folder / name, name, f"{message}, checkpoint", again, revision, api)
            except PushError as error:
                logger.warning("Training goes on, but %s", error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        job = api.run_as_future(upload)
        if busy:
            self.push_in_progress.jobs.append(job)
        else:
            self.push_in_progress = PushInProgress([job])
