"""
The models that the policy is compared with, and the [`Scorer`], which scores batches and counts every forward.

| policy | reference | made by |
|---|---|---|
| a full model | a second model | TRL, from the policy's path; a copy if the policy's class or settings differ |
| a `PeftModel` | the frozen adapter `ref` | TRL copies the adapter `default` |
| a model and a `peft_config`, no resets | the model without its adapter | TRL |
| a model and a `peft_config`, with resets | the frozen adapter `ref` | [`AnchorModels`]; TRL scores with it |
| any, with `ref_model` | a [`Teacher`] | extras/teacher.py; TRL makes none |

A reference that resets can move starts as the policy.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel, is_peft_model
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import save_file
from torch.utils.weak import WeakTensorKeyDictionary
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from .anchors import Anchor
from .cli.fp32_head import cast_head_to_fp32, decoder_dtype
from .errors import InputError
from .kl import Anchors, Batch, completion_mask, has_advantage, zero_masked
from .upstream.modules import Parameters, is_sharded
from .upstream.weights import copy_tensors, settings_of


logger = logging.getLogger(__name__)

SNAPSHOT_FILE = "reference.safetensors"
# What to set for batches with images, by anchor: it is scored from token ids alone.
IMAGE_CURES = {"ref": "ref_compute: cached", "old": "kl_in: loss", "base": "beta_base: 0"}
Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # a tensor of the reference, and the policy's


def unique_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's parameters and saved buffers by name, tied weights once."""
    tensors = {}
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def check_active_adapter(policy: PeftModel) -> None:
    """Raise `InputError` unless one adapter, `default`, is active: anchors are copies of it."""
    if policy.active_adapters != ["default"]:
        raise InputError(
            f"the active adapter is {', '.join(map(repr, policy.active_adapters))}, but only one named 'default' is "
            "trained, saved and resumed. Load the policy's with adapter_name='default', and merge others into the "
            "base model: docs/from-sft.md."
        )


def trained_outside_adapters(policy: PeftModel) -> dict[str, torch.nn.Parameter]:
    """Return the trained parameters of the model itself, which disabling the adapter does not change."""
    marks = [f".{name}." for name in policy.peft_config]
    pattern = re.compile("|".join(map(re.escape, marks)))
    outside = {}
    for name, param in policy.named_parameters():
        if param.requires_grad and not pattern.search(f".{name}."):
            outside[name] = param
    return outside


def check_trained(policy: torch.nn.Module, anchor_keys: list[str]) -> None:
    """
    Raise `ValueError` for trained parameters outside the adapter that a checkpoint would lack, or that would move a
    reference or starting model (`anchor_keys`: of their coefficients) on the same base.
    """
    if not isinstance(policy, PeftModel):
        return
    outside = trained_outside_adapters(policy)
    if not outside:
        return
    adapter = policy.active_adapters[0]
    saved = get_peft_model_state_dict(policy, adapter_name=adapter, save_embedding_layers=False)
    lost = [name for name in outside if name not in saved]
    if lost:
        raise ValueError(
            f"{lost[0]} is trained outside the adapter {adapter!r}, and no adapter file contains it. Add its module "
            "to modules_to_save of the peft_config, or freeze it: requires_grad_(False)."
        )
    if anchor_keys:
        raise ValueError(
            f"{next(iter(outside))} is trained outside the adapter {adapter!r} and shared with the models of "
            f"{' and '.join(anchor_keys)}, so their KL would be to a model that moves with the policy. Add its module "
            f"to modules_to_save of the peft_config, or set {' and '.join(f'{key}=0' for key in anchor_keys)}."
        )


def frozen_adapter(model, name: str) -> str:
    """
    Add a frozen copy of the adapter `default` of a [`~peft.PeftModel`], with the same configuration object, as TRL
    does.
    """
    # The copy's random initialisation must not advance the run's random state.
    with torch.random.fork_rng():
        model.add_adapter(name, model.peft_config["default"])
    disable_dropout_in_model(model)  # affects the copy alone: an active dropout of the policy raises an error
    for ref, policy in AdapterReference(model, name).pairs():
        ref.data.copy_(policy.data)
    return name


def frozen_copy(model, temperature: float, cast_lm_head_to_fp32: bool):
    """
    Make a frozen copy that scores as TRL's models do. Not by deepcopy: the forward patched by TRL closes over the
    original.
    """
    config = model.config
    with torch.random.fork_rng():  # as in `frozen_adapter`
        settings = {"dtype": decoder_dtype(model), "attn_implementation": config._attn_implementation}
        copy = type(model)._from_config(config, **settings)
    if cast_lm_head_to_fp32:
        cast_head_to_fp32(copy)
    copy.load_state_dict(model.state_dict())
    copy.requires_grad_(False)
    copy.eval()  # as `from_pretrained` returns TRL's
    disable_dropout_in_model(copy)
    add_fused_lm_head(copy, temperature=temperature, cast_lm_head_to_fp32=cast_lm_head_to_fp32)
    return copy


def has_settings_of(policy: torch.nn.Module, reference: torch.nn.Module) -> bool:
    return settings_of(policy.config.to_dict()) == settings_of(reference.config.to_dict())


def warn_of_another(policy: torch.nn.Module, reference: torch.nn.Module, path: str) -> None:
    """Warn if the policy differs from the model at its path, TRL's reference."""
    starting = unique_tensors(policy)
    loaded = unique_tensors(reference)
    is_alike = starting.keys() == loaded.keys() and has_settings_of(policy, reference)
    if is_alike and all(torch.equal(loaded[name].to(starting[name]), starting[name]) for name in starting):
        return
    logger.warning(
        "The policy is not the model of %s, which TRL loads as the fixed reference: it was changed in memory. For a "
        "KL to the policy as it is now, save it and pass the folder.",
        path,
    )


def warn_of_rounded(reference: torch.nn.Module, mix: float) -> None:
    """Warn if averages of a reference's weights are rounded to bf16 or fp16."""
    dtype = decoder_dtype(reference)
    if 0.0 < mix < 1.0 and dtype in (torch.bfloat16, torch.float16):
        logger.warning(
            "ref_reset_mix=%g averages weights in %s: a weight of the reference stays where it is while the policy's "
            "differs by less than %.2g of its size. Set dtype: float32 (in a script, in model_init_kwargs), or "
            "ref_reset_mix: 1.",
            mix,
            str(dtype).removeprefix("torch."),
            torch.finfo(dtype).eps / (4 * mix),
        )


class AnchorModels:
    """
    Makes the models that score as anchors of a policy.

    `moves`: whether resets move the reference. `fresh_adapter`: whether the adapter has no effect at the start.
    `wrapped_by_trl`: whether TRL made it from a `peft_config`.
    """

    def __init__(self, trainer, policy, moves: bool, fresh_adapter: bool, wrapped_by_trl: bool):
        self.trainer = trainer
        self.policy = policy
        self.moves = moves
        self.fresh_adapter = fresh_adapter
        self.wrapped_by_trl = wrapped_by_trl

    def make_adapter_reference(self, name: str | None) -> "AdapterReference":
        return AdapterReference(self.policy, name, self.trainer.modules.all)

    def make_policy(self) -> "Policy":
        return Policy()

    def make_reference(self) -> "AdapterReference | SnapshotReference":
        """Return TRL's reference, replaced or set to the policy where the file's table says so."""
        trainer = self.trainer
        if trainer.teacher is not None:
            return trainer.teacher
        if trainer.ref_model is not None:
            reference = SnapshotReference(self.policy, trainer.accelerator.unwrap_model(trainer.ref_model))
            is_same_class = type(reference.ref_model) is type(self.policy)
            computes_alike = is_same_class and has_settings_of(self.policy, reference.ref_model)
            if self.moves and not computes_alike:
                # TRL uses class and settings of the path's config; a script's policy may have others.
                prepared = trainer.accelerator._models  # which would keep TRL's in memory
                prepared[:] = [model for model in prepared if model is not trainer.ref_model]
                del trainer.ref_model, reference
                reference = self.copy_policy("ref")
                trainer.ref_model = reference.ref_model
            # TRL loads from the path, but the policy may have been changed in memory.
            if self.moves:
                warn_of_rounded(reference.ref_model, trainer.args.ref_reset_mix)
                reference.move(1.0)
            elif is_same_class and not is_sharded(trainer.accelerator):
                warn_of_another(self.policy, reference.ref_model, self.policy.config._name_or_path)
            return reference
        if self.wrapped_by_trl and "ref" in self.policy.peft_config and not trainer.args.sync_ref_model:
            # A later TRL may create `ref` for its own sync. Here the reference is the base model.
            self.policy.delete_adapter("ref")
        if self.wrapped_by_trl and self.moves:  # TRL's own would be the base model
            frozen_adapter(self.policy, "ref")
        if "ref" not in self.policy.peft_config:
            return self.make_adapter_reference(None)
        reference = self.make_adapter_reference("ref")
        reference.move(1.0)  # TRL's copy lacks the factors of embeddings
        if self.moves and trainer.args.ref_reset_mix == 1.0:  # an average in bf16 would lose small steps
            reference.take_dtypes()
        return reference

    def make_initial_policy(self, name: str) -> "AdapterReference | SnapshotReference":
        """Return a model that scores as the policy does now: the base model if the adapter has no effect yet."""
        if is_peft_model(self.policy) and self.fresh_adapter:
            return self.make_adapter_reference(None)
        return self.copy_policy(name)

    def copy_policy(self, name: str) -> "AdapterReference | SnapshotReference":
        if is_peft_model(self.policy):
            copy = self.make_adapter_reference(frozen_adapter(self.policy, name))
            copy.take_dtypes()
            return copy
        copy = frozen_copy(self.policy, self.trainer.temperature, self.trainer.args.cast_lm_head_to_fp32)
        return SnapshotReference(self.policy, self.trainer.accelerator.prepare_model(copy, evaluation_mode=True))


class Policy:
    """The policy as an anchor's model: π_old before the first update."""

    packs = True

    def active(self, policy) -> AbstractContextManager[torch.nn.Module]:
        return nullcontext(policy)


class Reference:
    """A frozen model that can be set to the policy. `packs`: whether it scores packed rows if the policy does."""

    packs = True

    def pairs(self) -> Pairs:
        """Return pairs (reference, policy) of all parameters and of the reference's own buffers."""

    def scores_as(self, model) -> bool:
        """Return whether this model's next forward scores as the reference."""

    def active(self, policy) -> AbstractContextManager[torch.nn.Module]:
        """Return a context with a model that scores as the reference. `policy` may be wrapped."""

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint; PEFT saves an adapter with the model."""

    def load(self, folder: Path) -> None:
        """Read it from a checkpoint. PEFT loads an adapter with the model."""

    @torch.no_grad()
    def move(self, mix: float) -> None:
        """
        Set each parameter to mix · policy + (1 − mix) · reference, in place (TR-DPO, arXiv 2404.09656). For LoRA this
        averages the factors A and B, not their product.
        """
        if mix == 0.0:
            return
        for ref, policy in self.pairs():
            if mix == 1.0 or not ref.is_floating_point():
                ref.data.copy_(policy.data)
            else:
                ref.data.lerp_(policy.data.to(ref.dtype), mix)  # a quantised model's policy is bf16


class AdapterReference(Reference):
    """
    An adapter of a [`~peft.PeftModel`] next to the trained `default`; `None` is the model without an adapter, which
    cannot be moved. `modules` returns the model's.
    """

    def __init__(
        self, model, name: str | None = "ref", modules: Callable[[], Iterable[torch.nn.Module]] | None = None
    ):
        self.model = model
        self.name = name
        self.modules = modules or model.modules

    def pairs(self) -> Pairs:
        parameters = dict(self.model.named_parameters())
        pairs = []
        for name, param in parameters.items():  # `….lora_A.default.weight`, but `….lora_embedding_A.default`
            counterpart = f"{name}.".replace(".default.", f".{self.name}.").removesuffix(".")
            if counterpart != name:
                pairs.append((parameters[counterpart], param))
        return pairs

    def take_dtypes(self) -> None:
        """
        Compute in the policy's dtypes: PEFT makes the copy of a bf16 adapter in fp32, which rounds other numbers.
        """
        for ref, policy in self.pairs():
            ref.data = ref.data.to(policy.dtype)

    def scores_as(self, model) -> bool:
        for module in self.model.modules():
            if isinstance(module, BaseTunerLayer):
                return module.disable_adapters if self.name is None else self.name in module.active_adapters
        # Prompt adapters have no such layer.
        return self.name is None and self.model._adapters_disabled

    @contextmanager
    def active(self, policy) -> Iterator[torch.nn.Module]:
        """
        Let the layers compute with this adapter, for a forward without gradient. PEFT's own switch also changes
        `requires_grad` of every adapter's parameters: 17 to 40 ms for 28 layers, where this takes 1.
        """
        before = []
        for module in self.modules():
            if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
                before.append((module, module._active_adapter, module._disable_adapters))
        try:
            for module, _, _ in before:
                if self.name is None:
                    module._disable_adapters = True
                elif isinstance(module, AuxiliaryTrainingWrapper) and self.name not in module._adapters:
                    module._active_adapter = []  # a module of another adapter's `modules_to_save`
                else:
                    module._active_adapter = [self.name]
            yield policy
        finally:
            for module, adapter, is_disabled in before:
                module._active_adapter = adapter
                module._disable_adapters = is_disabled


class SnapshotReference(Reference):
    """A second, frozen model of the policy's shape, for full fine-tuning."""

    def __init__(self, model, ref_model):
        self.model = model
        self.ref_model = ref_model

    def pairs(self) -> Pairs:
        reference = unique_tensors(self.ref_model)
        policy = unique_tensors(self.model)
        return [(reference[name], policy[name]) for name in policy]

    def scores_as(self, model) -> bool:
        return extract_model_from_parallel(model) is self.ref_model

    def active(self, policy) -> AbstractContextManager[torch.nn.Module]:
        return nullcontext(self.ref_model)

    def save(self, folder: Path) -> None:
        tensors = unique_tensors(self.ref_model)
        tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / SNAPSHOT_FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        if (folder / SNAPSHOT_FILE).exists():  # a fixed reference writes none
            copy_tensors(folder / SNAPSHOT_FILE, unique_tensors(self.ref_model))


class Teacher(Reference):
    """
    Another model, which nothing moves or saves.

    Args:
        ref_model (`torch.nn.Module`): The model, unwrapped.
        name (`str`): As `ref_model` names it.
        packs (`bool`): Whether its family is listed for packed rows.
    """

    def __init__(self, ref_model: torch.nn.Module, name: str, packs: bool):
        self.ref_model = ref_model
        self.name = name
        self.packs = packs

    def scores_as(self, model) -> bool:
        return extract_model_from_parallel(model) is self.ref_model

    def active(self, policy) -> AbstractContextManager[torch.nn.Module]:
        return nullcontext(self.ref_model)


class InitialAdapter:
    """
    The starting policy of a run with an adapter, as evaluations' base: `values` is a host copy of the parameters that
    training changes. A new adapter is disabled for it, so only parameters trained outside (`bias`) are copied.
    """

    def __init__(self, policy: PeftModel, is_trained: bool):
        self.policy = policy
        self.is_trained = is_trained
        changing = trained_outside_adapters(policy)
        if is_trained:
            changing = {name: param for name, param in policy.named_parameters() if param.requires_grad}
        self.values = {name: param.detach().to("cpu", copy=True) for name, param in changing.items()}
        # A copy: growth changes the policy's.
        self.config = deepcopy(policy.peft_config.get("default")) if is_trained else None

    @contextmanager
    def as_initial_policy(self) -> Iterator[None]:
        parameters = dict(self.policy.named_parameters())
        trained = {name: parameters[name].data for name in self.values}
        self._set(parameters, {name: value.to(trained[name].device) for name, value in self.values.items()})
        try:
            with ExitStack() as stack:
                if not self.is_trained:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # PEFT warns about a trained bias, which was set back
                        stack.enter_context(self.policy.disable_adapter())
                yield
        finally:
            self._set(parameters, trained)

    def _set(self, parameters: Parameters, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            parameters[name].data = value

    def save(self, folder: Path) -> None:
        """
        Write the starting adapter for PEFT, unless there are others: evaluations read only a single one named
        `default`.
        """
        if not self.is_trained or self.policy.active_adapters != ["default"]:
            return
        configs = self.policy.peft_config
        trained_config = configs["default"]
        configs["default"] = self.config
        try:
            with self.as_initial_policy():
                self.policy.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
        finally:
            configs["default"] = trained_config


# ---------------------------------------------------------------------------------------------------------------------
# Scoring of batches by the policy in TRL's loss, and by the anchors.
#
#     TRL makes a generation batch ── asks for π_old, π_ref ──→ score_for_trl     log-probabilities or `None`
#     the batch is finished ────────────────────────────────→ score_anchor       once for each anchor that it lacks
#     TRL computes its loss ────────── asks for the policy ────→ score_policy      the rows of a `PolicyPass`


@dataclass
class PolicyPass:
    """
    One scoring of a micro-batch by the policy: B rows, T tokens.

    Attributes:
        mask (`torch.Tensor` of shape `(B, T)`): 1 for tokens that count in the loss; other log-probabilities become 0.
        rows (`torch.Tensor` of shape `(R,)`, *optional*): Rows to compute; `None` means all.
        plan_key (`torch.Tensor`, *optional*): Key of the micro-batch's packing plan, and its lifetime.
        fill (`torch.Tensor` of shape `(B, T)`, *optional*): Log-probabilities for skipped rows.
        batch (`dict`, *optional*): TRL's copy of the micro-batch; a trust region masks its advantages.
        leaves_kl (`bool`): Whether TRL's loss leaves the KL to the reference to us.
        logps, entropies (`torch.Tensor` of shape `(B, T)`): The result.
        outside (`torch.Tensor` of shape `(B, T)`, *optional*): Whether a token is outside the trust region.
    """

    mask: torch.Tensor
    rows: torch.Tensor | None = None
    plan_key: torch.Tensor | None = None
    fill: torch.Tensor | None = None
    batch: dict[str, Any] | None = None
    leaves_kl: bool = False
    logps: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    outside: torch.Tensor | None = None


class Scorer:
    """
    Scores completions, and counts the calls of each model. `acceleration` may replace TRL's method. Batches of token
    ids alone (`text_only`) can be scored again from the buffer.
    """

    def __init__(self, args, meter, anchors: Anchors, acceleration, text_only: bool):
        self.args = args
        self.meter = meter
        self.anchors = anchors
        self.acceleration = acceleration
        self.text_only = text_only
        # Chosen rows of batches in use, by their advantages: choosing rows synchronizes with the GPU.
        self._rows = WeakTensorKeyDictionary()

    def score_for_trl(self, trl_score: Callable, model: Callable, *args, **kwargs) -> tuple:
        """
        Answer TRL's request for log-probabilities of π_old or the reference: three times `None` if they come later.
        """
        anchor = self.anchors["old"]
        reference = self.anchors["ref"]
        if reference.model is not None and reference.model.scores_as(model):
            anchor = reference
        if self.comes_later(anchor):
            return None, None, None
        return self._score_counted(anchor, trl_score, model, *args, **kwargs)

    def comes_later(self, anchor: Anchor) -> bool:
        """Return whether the loss or the finished batch provides an anchor's log-probabilities."""
        if anchor.scored_at == "batch":
            return self.text_only and not self.args.is_trl
        return anchor.scored_at == "loss"

    def rows_to_score(self, batch: Batch, needs_all: bool) -> torch.Tensor | None:
        """
        Return the rows of a training micro-batch to compute, indices `(R,)`: those with a gradient, if the run skips
        the others. `None` means all. The choice is kept with the batch.
        """
        if needs_all or not (self.args.skips_zero_rows and self.text_only):
            return None
        advantages = batch["advantages"]
        if advantages not in self._rows:
            has_gradient = rows_with_gradient(batch)
            number = int(has_gradient.sum())
            rows = None
            if number < len(advantages):
                rows = has_gradient.argsort(descending=True, stable=True)[:number]
            self._rows[advantages] = rows
        return self._rows[advantages]

    def score(self, trl_score: Callable, model: Callable, *args, **kwargs) -> tuple:
        """Score as TRL does, uncounted: for an evaluation or a script."""
        reference = self.anchors["ref"].model
        packs = reference is None or reference.packs or not reference.scores_as(model)
        return self._with_plan(trl_score, None, packs)(model, *args, **kwargs)

    def score_policy(
        self, policy_pass: PolicyPass, is_counted: bool, trl_score: Callable, model: Callable, *args, **kwargs
    ) -> tuple:
        """
        Score a micro-batch by the policy, and keep the result in its [`PolicyPass`]. Returns log-probabilities and
        entropies `(B, T)`, and the load-balancing loss. Raises `ValueError`: a `_compute_loss` scores a part of the
        micro-batch, or scores it twice, and the KL would be of one of them.
        """
        score = self._with_plan(trl_score, policy_pass.plan_key)
        if is_counted:
            model = self.meter.counted(model, "policy")
        if policy_pass.rows is None:
            logps, entropies, aux_loss = score(model, *args, **kwargs)
        else:
            logps, entropies, aux_loss = self._score_some_rows(score, policy_pass, model, *args, **kwargs)
        if policy_pass.logps is not None or logps.shape != policy_pass.mask.shape:
            raise InputError(
                "_compute_loss scores a micro-batch twice, or a part of it. Score it again in compute_loss, after "
                "super().compute_loss."
            )
        logps = zero_masked(logps, policy_pass.mask)
        policy_pass.logps = logps
        policy_pass.entropies = entropies
        return logps, entropies, aux_loss

    @staticmethod
    def _score_some_rows(
        score, policy_pass: PolicyPass, model, input_ids, attention_mask, logits_to_keep, **kwargs
    ) -> tuple:
        """Skipped rows get π_old's log-probabilities (ratio 1) and the computed mean entropy."""
        rows = policy_pass.rows
        some_logps, some_entropies, aux_loss = score(
            model, input_ids[rows], attention_mask[rows], logits_to_keep, **kwargs
        )
        mask = policy_pass.mask[rows]
        mean_entropy = (some_entropies * mask).sum() / mask.sum().clamp(min=1)
        shape = (len(input_ids), logits_to_keep)
        if policy_pass.fill is None:  # the first pass; later passes skip the same rows
            fill = some_logps.new_zeros(shape)
        else:
            fill = policy_pass.fill.to(some_logps.dtype)
        logps = fill.index_copy(0, rows, some_logps)
        entropies = mean_entropy.expand(shape).index_copy(0, rows, some_entropies)
        return logps, entropies, aux_loss

    @torch.no_grad()
    def score_anchor(
        self, anchor: Anchor, trl_score: Callable, policy: Callable, batch: Mapping[str, Any], size: int | None
    ) -> torch.Tensor:
        """
        Return log-probabilities `(B, T)` of completions under an anchor, in nats, by forwards of `size` rows (`None`:
        all). Raises `ValueError`: the batch has images.
        """
        if "num_images" in batch or "pixel_values" in batch:
            raise InputError(f"a KL to {anchor.words} is scored without images here. Set {IMAGE_CURES[anchor.name]}.")
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        length = batch["completion_ids"].size(1)
        with anchor.model.active(policy) as model:
            logps, _, _ = self._score_counted(
                anchor, trl_score, model, tokens, mask, length, batch_size=size, plan_key=batch["completion_mask"]
            )
        return logps

    def _score_counted(
        self,
        anchor: Anchor,
        trl_score: Callable,
        model: Callable,
        *args,
        plan_key: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple:
        score = self._with_plan(trl_score, plan_key, anchor.model.packs)
        with self.meter.timer.stage(anchor.name):
            return score(self.meter.counted(model, anchor.name), *args, **kwargs)

    def _with_plan(self, trl_score: Callable, plan_key: torch.Tensor | None, packs: bool = True) -> Callable:
        """Return the function that scores: packed, with the plan of `plan_key`, if the model `packs`, or TRL's."""
        packed = self.acceleration.score
        return trl_score if packed is None or not packs else partial(packed, plan_key=plan_key)


def rows_with_gradient(batch: Batch) -> torch.Tensor:
    """
    Return which rows have a gradient if no penalty acts, bools `(B,)`: those with tokens that count and a non-zero
    advantage or, without any, the shortest of those with tokens, because every process needs a backward pass.
    """
    lengths = completion_mask(batch).sum(dim=1)
    has_gradient = has_advantage(batch) & (lengths > 0)
    shortest = lengths.masked_fill(lengths == 0, lengths.max() + 1).argmin()
    is_shortest = torch.arange(len(has_gradient), device=has_gradient.device) == shortest
    return has_gradient | (is_shortest & ~has_gradient.any())
