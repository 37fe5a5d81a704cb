"""The models of a trainer in memory, with a user's rows and verifier."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from trl_prorl.cli.dropout import evaluation_mode
from trl_prorl.cli.training_prompts import TrainingPrompts
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.held_out import HeldOut, default_folder, plan
from trl_prorl.eval.samples.models import Point, load_base_model, load_processor, load_tokenizer, with_base_model
from trl_prorl.eval.samples.own_rows import OwnRows
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling
from trl_prorl.eval.samples.store import SAMPLES_FOLDER, content_ids
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.run.files import check_contents
from trl_prorl.run.starting import weights_hash
from trl_prorl.text import shell_quote


POLICY = "policy"  # in `passk.json`


class TrainerHeldOut(HeldOut):
    """
    A trainer's models on a user's rows. Trained is the policy in memory. Base is the policy without its adapter, or
    with the trained adapter from which the run started; after full fine-tuning, the starting model is loaded. Samples
    are kept while this object lives, and written into `samples/` to be read.

    Raises:
        InputError: If the trainer cannot be evaluated, or if the verifier fails on the first row.
    """

    grader = None  # a verifier in memory has no version

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
        if trainer.accelerator.num_processes > 1:
            raise InputError("evaluate and drift need one process: use `trl-prorl passk --plugin FILE.py`")
        ways = {
            "environment_factory": trainer.environment_factories,
            "tools": trainer.tools,
            "rollout_func": trainer.rollout_func,
        }
        for key, way in ways.items():
            if way:
                raise InputError(
                    f"{key} is not supported by evaluate and drift, which sample one turn of the model; pass "
                    "eval_dataset and set eval_strategy, which evaluate as the run samples"
                )
        self.task = OwnRows(rows, verifier)
        self.run_dir = Path(getattr(trainer, "run_dir", trainer.args.output_dir))
        self.run_dir.mkdir(parents=True, exist_ok=True)
        check_contents(self.run_dir)
        self.seed = operator.index(seed)  # NumPy's integers, too: a result is written as JSON
        self.batch_size = operator.index(batch_size)
        self.name = TaskName(name, is_own=True)
        self.rows = list(self.task.all_rows)
        self.prompt_ids = content_ids(self.rows)
        trained_on = getattr(trainer, "training_prompts", None) or TrainingPrompts(trainer.train_dataset)
        self.in_training = trained_on.count(row["prompt"] for row in self.rows)
        self.split = "train" if self.in_training == len(self.rows) else "test"
        if max_new_tokens is not None:
            max_new_tokens = operator.index(max_new_tokens)
        self.sampling = SamplingSettings.of_run(vars(trainer.args), temperature, max_new_tokens)
        self.tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if self.tokenizer is not trainer.processing_class:
            self.processor = trainer.processing_class
        self.trained = Point("trained", step_of_weights(trainer), None)
        self.base = Point("base", 0, None)
        self.policy = trainer.accelerator.unwrap_model(trainer.model)
        self.base_below = isinstance(self.policy, PeftModel)
        self.initial_adapter = getattr(trainer, "initial_adapter", None)
        self.config = {"bf16": trainer.args.bf16, "model_init_kwargs": trainer.args.model_init_kwargs}
        if self.base_below:
            check_not_merged(self.policy)
        else:
            self.config["model_name_or_path"] = name_of(self.policy)
            run_dir = None if self.trained.step is None else self.run_dir
            self.config = with_base_model(run_dir, self.config)
        self._drawn: dict[tuple, pd.DataFrame] = {}

    def samples(self, point: Point, n: int, *, temperature: float | None = None) -> pd.DataFrame:
        sampling = self.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        if (point, n, temperature) not in self._drawn:
            batches = plan(dict.fromkeys(range(len(self.rows)), n), self.batch_size)
            drawn = self._draw(point, batches, [0] * len(self.rows), sampling)
            frame = pd.DataFrame([record for records in drawn for record in records])
            frame = frame.sort_values("sample", kind="stable").set_index("prompt_id", drop=False)
            frame = frame.loc[self.prompt_ids].reset_index(drop=True)
            folder = self.run_dir / SAMPLES_FOLDER
            folder.mkdir(exist_ok=True)
            frame.to_parquet(folder / f"{point.label}-script{'' if sampling.temperature else '-greedy'}.parquet")
            self._drawn[point, n, temperature] = frame
        return self._drawn[point, n, temperature]

    def versions(self) -> dict:
        """
        Return the precision, and a hash of the weights of a model that no trainer has: the policy may not be saved,
        and a verifier in memory has no version.
        """
        versions = {"dtype": self._dtype()}
        if self.trained.step is None:
            versions[POLICY] = weights_hash(list(self.policy.named_parameters()), whole=True)
        return versions

    def _dtype(self) -> str:
        """Return the precision in which the policy computes; a command may load it in another precision."""
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
        before = dict(base.named_parameters())
        after = dict(self.policy.named_parameters())
        if before.keys() == after.keys() and all(
            torch.equal(before[name].to(after[name]), after[name]) for name in after
        ):
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


def as_trainer(model: PreTrainedModel | PeftModel, output_dir: str | None):
    """
    Return, for a model in memory, the attributes that [`TrainerHeldOut`] reads of a trainer. The tokenizer is that of
    the folder or the Hub name from which the model was loaded.
    """
    name = name_of(model)
    folder = output_dir or default_folder(name)
    adapters = getattr(model, "peft_config", {}).values()
    revision = next((adapter.revision for adapter in adapters), None)
    tokenizer = load_tokenizer(name, revision)
    return SimpleNamespace(
        model=model,
        accelerator=SimpleNamespace(num_processes=1, unwrap_model=lambda model: model),
        args=SimpleNamespace(output_dir=folder, bf16=False, model_init_kwargs=None),
        processing_class=load_processor(name, tokenizer, revision) or tokenizer,
        train_dataset=None,
        environment_factories=None,
        tools=None,
        rollout_func=None,
        state=SimpleNamespace(global_step=None),
    )


def name_of(model) -> str:
    """Return the folder or the Hub name from which a model was loaded. Raises `InputError`: it has none."""
    name = model.config._name_or_path
    if not name:
        raise InputError(
            "the model has no name, from which its tokenizer and its starting model are loaded: save both with "
            "save_pretrained, and load the model from there"
        )
    return name


def check_not_merged(policy: PeftModel) -> None:
    """Raise `InputError` for an adapter in the weights: the starting model is the policy without it."""
    layers = [module for module in policy.modules() if isinstance(module, BaseTunerLayer)]
    is_unloaded = not layers and not policy.active_peft_config.is_prompt_learning
    if is_unloaded or any(layer.merged for layer in layers):
        raise InputError(
            "the adapter is merged into the model: call model.unmerge_adapter() first, or after merge_and_unload() "
            "evaluate the model that it returned"
        )


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
