"""
Right: the numbers of every arm are TRL's. An arm and its control train on the same batches from the same weights.

The yardstick is rounding, as the device makes it: the control against itself, once with half a micro-batch and once
with another kernel of the same attention, which change nothing else. Adam makes more of it in each update, in the arm
as in the control.
"""

import tempfile
import warnings
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate.utils.memory import clear_device_cache
from peft import get_peft_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import TrainerCallback, set_seed
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.parts import Result, Size, Table
from trl_prorl.eval.stepcost.settings import Batches
from trl_prorl.eval.stepcost.trainers import make_trainer
from trl_prorl.resets.optimizer_state import inner_of


class Moved(GRPOTrainer):
    """TRL, its reference moved to the policy before every generation: A with a reset at every boundary, and B."""

    def __init__(self, model, args, peft_config, **others):
        set_seed(args.seed)  # as TRL does before it wraps a model; given a wrapped one, it makes an adapter `ref`
        super().__init__(model=get_peft_model(model, peft_config), args=args, **others)

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            policy = dict(self.accelerator.unwrap_model(self.model).named_parameters())
            with torch.no_grad():
                for name in (name for name in policy if ".default." in name):
                    policy[name.replace(".default.", ".ref.")].copy_(policy[name])
        return super()._generate_and_score_completions(inputs)


class MovedAndCleared(Moved):
    """And Adam begins anew: C with `hard`."""

    def _generate_and_score_completions(self, inputs):
        if self.model.training and self.state.global_step:
            inner_of(self.optimizer).state.clear()
        return super()._generate_and_score_completions(inputs)


# The allowance in multiples of rounding, as for the probe of packing (`trl_prorl/scoring/packing_probe.py`).
FACTOR = 4.0
# The share by which two runs may differ in any case: units in the last place of fp32 and of bf16, a few.
LEAST = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
TRAINED = {"max_steps": 5, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "adam_epsilon": 1e-6}
CONTROLS = {
    "TRL, fixed reference": (GRPOTrainer, {"beta": 0.3}),
    "TRL, no reference": (GRPOTrainer, {"beta": 0.0}),
    "TRL, reference moved every generation": (Moved, {"beta": 0.3}),
    "TRL, moved, Adam cleared": (MovedAndCleared, {"beta": 0.3}),
}
A = {"beta": 0.3, "ref_reset_every": 1}
ARMS = {  # by name the control, and the keys
    "all off": ("TRL, fixed reference", {"beta": 0.3}),
    "no reference": ("TRL, no reference", {}),
    "A": ("TRL, reference moved every generation", A),
    "B": ("TRL, reference moved every generation", {"beta_old": 0.3}),
    "C": ("TRL, moved, Adam cleared", A | {"optimizer_reset": "hard"}),
}
REUSED = {"reuse_old_logps": True}
WAYS = {"": {}, ", reused": REUSED, ", packed": REUSED | {"pack_groups": "on"}}
FEW = {torch.float32: ("all off", "A, packed", "B, packed", "C, packed"), torch.bfloat16: ("A, packed",)}  # on a CPU


@dataclass
class Trained:
    """
    Attributes:
        losses (`list[float]`): Of every micro-batch.
        gradient (`torch.Tensor`): Before the first update, flat, in float64 on the CPU.
        start, end (`torch.Tensor`): Trained weights before and after, the same.
    """

    losses: list[float] = field(default_factory=list)
    gradient: torch.Tensor | None = None
    start: torch.Tensor | None = None
    end: torch.Tensor | None = None


class FirstGradient(TrainerCallback):
    """Keeps the gradient of the first update."""

    def __init__(self, kept: Trained):
        self.kept = kept

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.kept.gradient is None:
            self.kept.gradient = flat(model, lambda param: param.grad)


def flat(model: torch.nn.Module, value) -> torch.Tensor:
    """A value of all trained parameters of a model, in one row; 0 where there is none."""
    values = [(param, value(param)) for param in model.parameters() if param.requires_grad]
    values = [torch.zeros_like(param) if found is None else found for param, found in values]
    return torch.cat([found.detach().double().flatten().cpu() for found in values])


def train(arm: tuple, args: Namespace, batches: Batches) -> Trained:
    """Train an arm, a trainer's class and its keys, from the same beginning on the same batches."""
    kept = Trained()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer("arm", (arm[0], arm[1] | TRAINED), args, batches, 2, False, folder)
        step = trainer.training_step

        def watched(*given, **named):
            loss = step(*given, **named)
            kept.losses.append(loss.item())
            return loss

        trainer.training_step = watched
        trainer.add_callback(FirstGradient(kept))
        policy = trainer.accelerator.unwrap_model(trainer.model)
        kept.start = flat(policy, lambda param: param)
        trainer.train()
        kept.end = flat(policy, lambda param: param)
    clear_device_cache(garbage_collection=True)
    return kept


def distances(one: Trained, other: Trained) -> dict[str, float]:
    """How far apart two runs are, each as a share of the second's own size."""
    losses, others = (torch.tensor(run.losses, dtype=torch.float64) for run in (one, other))
    return {
        "losses": share(losses - others, others),
        "gradient": share(one.gradient - other.gradient, other.gradient),
        "weights": share(one.end - other.end, other.end - other.start),
    }


def share(difference: torch.Tensor, whole: torch.Tensor) -> float:
    return (difference.norm() / whole.norm().clamp(min=1e-300)).item()


def rounding(arm: tuple, args: Namespace, batches: Batches, control: Trained) -> dict[str, float]:
    """The yardstick: the larger of two changes that change nothing but the order of additions."""
    halved = train(arm, Namespace(**vars(args) | {"micro_batch": args.micro_batch // 2}), batches)
    # The loss of an update, whose micro-batches count half each.
    halved.losses = [sum(pair) for pair in zip(halved.losses[::2], halved.losses[1::2], strict=True)]
    with sdpa_kernel(SDPBackend.MATH):
        other = train(arm, args, batches)
    found = [distances(changed, control) for changed in (halved, other)]
    return {name: max(each[name] for each in found) for name in found[0]}


def parity(size: Size, folder: Path) -> Result:
    """Losses, first gradients, and weights after five updates, in fp32 and in bf16."""
    result = Result()
    for dtype in LEAST:
        args = size.arguments(dtype=dtype, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24)
        batches, precision = Batches(args, 1.0), str(dtype).removeprefix("torch.")
        controls, allowed, rows = {}, {}, []
        for name, (control, keys) in arms().items():
            if not size.on_card and name not in FEW[dtype]:
                continue
            if control not in controls:
                controls[control] = train(CONTROLS[control], args, batches)
                noise = rounding(CONTROLS[control], args, batches, controls[control])
                allowed[control] = {what: FACTOR * max(value, LEAST[dtype]) for what, value in noise.items()}
            ours = train((ProRLTrainer, keys), args, batches)
            same = torch.equal(ours.start, controls[control].start)
            result.check(f"{precision}, {name}: first weights", same, "equal to the bit" if same else "other weights")
            found = distances(ours, controls[control])
            for what, value in found.items():
                limit = allowed[control][what]
                said = f"{value:.1e} off {control}, allowed {limit:.1e}"
                result.check(f"{precision}, {name}: {what}", value <= limit, said)
            rows.append([name, control, *found.values(), *allowed[control].values()])
        columns = ["arm", "against", *(f"{what} {word}" for word in ("off", "allowed") for what in found)]
        note = f"As shares of the control's own. Allowed: {FACTOR:g} times the control's own rounding."
        result.tables.append(Table(f"Parity with TRL after 5 updates, {precision}", columns, rows, note))
    return result


def arms() -> dict[str, tuple[str, dict]]:
    """Every arm in every way: its control and its keys."""
    return {
        f"{arm}{way}": (control, keys | more) for arm, (control, keys) in ARMS.items() for way, more in WAYS.items()
    }
