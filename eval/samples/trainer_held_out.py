"""The models of a trainer in memory, with a user's rows and verifier."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from trl_prorl.cli.dropout import evaluation_mode
from trl_prorl.cli.training_prompts import TrainingPrompts
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import Point, identity, load_base_model
from trl_prorl.eval.samples.own_rows import OwnRows
from trl_prorl.eval.samples.run_samples import HeldOut, split_of
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling
from trl_prorl.eval.samples.store import content_ids
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.run.files import check_contents, json_sha256
from trl_prorl.run.identity import base_parameters, weights_hash
from trl_prorl.run.provenance import as_plain
from trl_prorl.text import shell_quote
from trl_prorl.upstream.weights import settings_of


POLICY = "policy"  # in `passk.json`


class TrainerHeldOut(HeldOut):
    """
    A trainer's models on a user's rows. Trained is the policy in memory. Base is the policy without its adapter, or
    with the trained adapter from which the run started; after full fine-tuning, the starting model is loaded.

    Raises:
        InputError: If the trainer cannot be evaluated, or if the verifier fails on the first row.
    """

    def __init__(
        self,
        trainer,
        rows,
        verifier: Callable | None,
        name: str,
        *,
        seed: int = 0,
        batch_size: int = 512,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ):
        processes = trainer.accelerator.num_processes
        if processes > 1:
            raise InputError(
                f"evaluate and drift need one process, and this run has {processes}; evaluate it with "
                "`trl-prorl passk --plugin FILE.py` after training"
            )
        ways = {
            "environment_factory": trainer.environment_factories,
            "tools": trainer.tools,
            "rollout_func": trainer.rollout_func,
        }
        for name_of_way, way in ways.items():
            if way:
                raise InputError(
                    f"{name_of_way} is not supported by evaluate and drift, which sample one turn of the model; pass "
                    "eval_dataset and set eval_strategy, which evaluate as the run samples"
                )
        self.task = OwnRows(rows, verifier)
        self.run_dir = Path(getattr(trainer, "run_dir", trainer.args.output_dir))
        self.run_dir.mkdir(parents=True, exist_ok=True)
        check_contents(self.run_dir)
        self.seed = seed
        self.batch_size = batch_size
        self.name = TaskName(name, is_own=True)
        self.rows = list(self.task.all_rows)
        self.prompt_ids = content_ids(self.rows)
        trained_on = getattr(trainer, "training_prompts", None) or TrainingPrompts(trainer.train_dataset)
        self.in_training = trained_on.count(row["prompt"] for row in self.rows)
        self.split = split_of(self.in_training, len(self.rows))
        self.sampling = SamplingSettings.of_run(vars(trainer.args), temperature, max_new_tokens)
        # A verifier has no version, so stored samples are graded again.
        self.grader = None if verifier is None else uuid4().hex[:12]
        self.tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if self.tokenizer is not trainer.processing_class:
            self.processor = trainer.processing_class
        self.trained = Point("trained", step_of_weights(trainer), None)
        self.base = Point("base", 0, None)
        self.policy = trainer.accelerator.unwrap_model(trainer.model)
        self.base_below = isinstance(self.policy, PeftModel)
        self.initial_adapter = getattr(trainer, "initial_adapter", None)
        noted = read_env(self.run_dir).get("base_model") or {}
        if not hasattr(trainer, "run_dir"):  # TRL's: its model knows its name
            noted = {"name": self.policy.config._name_or_path} | noted
        self.config = {
            "model_name_or_path": noted.get("name"),
            "model_init_kwargs": {**(trainer.args.model_init_kwargs or {}), "revision": noted.get("commit")},
            "bf16": trainer.args.bf16,
        }
        if not self.base_below and not noted.get("name"):
            raise InputError("env.json has no starting model to compare with: call evaluate or drift after training")
        if not self.base_below:
            self.config = with_local_paths(self.run_dir, self.config)

    def versions(self) -> dict:
        """
        Return the precision, and a hash of the weights of a model that no trainer has: the policy may not be saved,
        and a verifier in memory has no version.
        """
        found = {"dtype": self._dtype(self.trained)}
        if self.trained.step is None:
            found[POLICY] = json_sha256(self._identity(self.trained))
        return found

    def _identity(self, point: Point) -> dict:
        if point is self.base and not self.base_below:
            return identity(None, self.config)
        named = base_parameters(self.policy)
        below = {id(param) for _, param in named}
        if point is self.base and self.initial_adapter is not None and self.initial_adapter.is_trained:
            named = [*named, *self.initial_adapter.values.items()]
        with self.as_point(point):
            found = {"weights": weights_hash(named, whole=True)}
            if point is not self.base:
                # PEFT loads adapters that are not trained, and marks them as trained when they are switched on again.
                adapters = [(name, param) for name, param in self.policy.named_parameters() if id(param) not in below]
                found["adapters"] = weights_hash(adapters, whole=True)
        return found

    def _declared_end(self, point: Point) -> int | list[int] | None:
        if point is self.base and not self.base_below:
            return super()._declared_end(point)
        return self.policy.generation_config.eos_token_id

    def _model_config(self, point: Point) -> dict:
        """Return that of the policy in memory, with the adapter's scaling, which a script may have changed."""
        if point is self.base and not self.base_below:
            return super()._model_config(point)
        config = settings_of(self.policy.config.to_diff_dict())
        if point is self.base and not getattr(self.initial_adapter, "is_trained", False):
            return config
        layers = {name: module for name, module in self.policy.named_modules() if isinstance(module, BaseTunerLayer)}
        return {**config, "scaling": {name: as_plain(getattr(layer, "scaling", {})) for name, layer in layers.items()}}

    def _dtype(self, point: Point) -> str:
        """Return the precision in which the policy computes; a command may load it in another precision."""
        if point is self.base and not self.base_below:
            return super()._dtype(point)
        if self.config["bf16"] and not self.base_below:
            return "bfloat16"  # from accelerate's autocast, which wraps a full model's forward
        return str(next(self.policy.parameters()).dtype).removeprefix("torch.")

    @contextmanager
    def _model(self, point: Point) -> Iterator[tuple]:
        if point is self.base and not self.base_below:
            base = load_base_model(self.config)
            if self.trained.step is None:
                self._check_differs(base)
            yield prepare_for_sampling(base)
            return
        with evaluation_mode(self.policy), self.as_point(point):
            yield prepare_for_sampling(self.policy, merge=False)

    @contextmanager
    def scored(self, point: Point) -> Iterator[Callable]:
        if point is self.base and not self.base_below:
            yield load_base_model(self.config).eval()
            return
        with evaluation_mode(self.policy):
            yield PolicyAs(self, point)

    def _check_differs(self, base) -> None:
        """Raise `InputError` for a model that was loaded from its own folder, not from the one that it began with."""
        then = dict(base.named_parameters())
        now = dict(self.policy.named_parameters())
        if then.keys() == now.keys() and all(torch.equal(then[name].to(now[name]), now[name]) for name in now):
            name = self.config["model_name_or_path"]
            raise InputError(
                f"the model has the weights of {name}, from which it was loaded, so there is no other to compare it "
                f"with. Use `trl-prorl passk --model {shell_quote(name)} --base NAME`, or pass a PeftModel"
            )

    @contextmanager
    def as_point(self, point: Point) -> Iterator[None]:
        """Make the policy the model of a point inside the context: as it is, or as the base."""
        if point is not self.base:
            yield
            return
        as_base = self.policy.disable_adapter()
        if self.initial_adapter is not None:
            as_base = self.initial_adapter.as_initial_policy()
        with as_base:
            yield


def step_of_weights(trainer) -> int | None:
    """Return the step of a trainer's weights: transformers may have loaded the best checkpoint at the end."""
    state = trainer.state
    step = state.global_step
    if getattr(trainer.args, "load_best_model_at_end", False) and state.best_model_checkpoint:
        step = state.best_global_step
    return getattr(trainer, "step_of_weights", step)


class PolicyAs:
    """The policy of a trainer that computes like the model of a point in each call: as it is, or as the base."""

    def __init__(self, held_out: TrainerHeldOut, point: Point):
        self.held_out = held_out
        self.point = point
        self.parameters = held_out.policy.parameters

    def __call__(self, **inputs):
        with self.held_out.as_point(self.point):
            return self.held_out.policy(**inputs)
