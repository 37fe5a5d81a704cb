"""The controls: arms of TRL's own code alone, changed only between two generations."""

import torch
from peft import get_peft_model
from transformers import set_seed
from trl import GRPOTrainer

from trl_prorl.resets.optimizer_state import inner_of


class MovedEveryGeneration(GRPOTrainer):
    """Its reference becomes the policy before every generation: what A does with a reset at every boundary, and B."""

    def __init__(self, model, args, peft_config, **others):
        set_seed(args.seed)  # as TRL does before it wraps a model; given a wrapped one, it makes an adapter `ref`
        super().__init__(model=get_peft_model(model, peft_config), args=args, **others)

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            policy = dict(self.accelerator.unwrap_model(self.model).named_parameters())
            with torch.no_grad():
                for name, param in policy.items():
                    if ".default." in name:
                        policy[name.replace(".default.", ".ref.")].copy_(param)
        return super()._generate_and_score_completions(inputs)


class MovedAndCleared(MovedEveryGeneration):
    """And Adam begins anew: C with `hard`."""

    def _generate_and_score_completions(self, inputs):
        if self.model.training and self.state.global_step:
            inner_of(self.optimizer).state.clear()
        return super()._generate_and_score_completions(inputs)


TRAINED = {"max_steps": 5, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "adam_epsilon": 1e-6}
CONTROLS = {
    "TRL, fixed reference": (GRPOTrainer, {"beta": 0.3} | TRAINED),
    "TRL, no reference": (GRPOTrainer, {"beta": 0.0} | TRAINED),
    "TRL, reference moved every generation": (MovedEveryGeneration, {"beta": 0.3} | TRAINED),
    "TRL, moved, Adam cleared": (MovedAndCleared, {"beta": 0.3} | TRAINED),
}
