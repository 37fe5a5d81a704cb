"""The models of a trainer in memory, on rows and by a verifier of the user's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

from peft import PeftModel

from trl_prorl.checkpoint.identity import base_parameters, weights_hash
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import Point, identity, load_base_model
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling
from trl_prorl.eval.samples.store import content_ids
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.tasks.base import Task


class TrainerHeldOut(HeldOut):
    """
    A trainer's models on rows of the user's. Trained is the policy in memory; base is that without its adapter, else
    the model that the run began from.
    """

    def __init__(
        self,
        trainer,
        rows,
        verifier: Callable,
        name: str,
        *,
        seed: int = 0,
        batch_size: int = 512,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ):
        self.run_dir = Path(trainer.run_dir)
        self.split = "test"
        self.seed = seed
        self.batch_size = batch_size
        self.name = TaskName(name)
        self.task = self  # it judges by the verifier
        self.verify = verifier
        self.rows = list(rows)
        self.prompt_ids = content_ids(self.rows)
        self.sampling = SamplingSettings.of_run(vars(trainer.args), temperature, max_new_tokens)
        self.grader = uuid4().hex[:12]  # a verifier has no version: what is on disk is judged anew
        self.tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self.trained = Point("trained", trainer.state.global_step, None)
        self.base = Point("base", 0, None)
        self.policy = trainer.accelerator.unwrap_model(trainer.model)
        self.base_below = isinstance(self.policy, PeftModel)
        self.restart = trainer.resets.restart  # has changed the model below the adapter
        env = read_env(self.run_dir)
        noted = (env.get("base_model") or {}).get("name")
        self.config = {"model_name_or_path": noted, "model_revision": env.get("base_commit")}
        if not self.base_below and not noted:
            raise InputError("the record names no model that the run began from, so there is no base: train first")
        if not self.base_below:
            self.config = with_local_paths(self.run_dir, self.config)

    answer_of = Task.answer_of
    turns = Task.turns

    def verify_many(self, completions, rows) -> list[bool]:
        return [bool(self.verify(completion, row)) for completion, row in zip(completions, rows, strict=True)]

    def _identity(self, point: Point) -> dict:
        if point is self.base and not self.base_below:
            return identity(None, self.config)
        named = base_parameters(self.policy) if point is self.base else self.policy.named_parameters()
        with self._below(point):
            return {"weights": weights_hash(named)}

    def _below(self, point: Point):
        """Give the base, inside, the weights below the adapter with which the run began."""
        if point is self.base and self.restart is not None:
            return self.restart.undone()
        return nullcontext()

    @contextmanager
    def _model(self, point: Point) -> Iterator[tuple]:
        if point is self.base and not self.base_below:
            yield prepare_for_sampling(load_base_model(self.config))
            return
        trains = self.policy.training
        without_adapter = self.policy.disable_adapter() if point is self.base else nullcontext()
        with self._below(point), without_adapter:
            yield prepare_for_sampling(self.policy.eval(), merge=False)
        self.policy.train(trains)
