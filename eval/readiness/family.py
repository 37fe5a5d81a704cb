"""Can `fast` serve a family of models that is not listed? A trial on a tiny model of the same class."""

from trl_prorl.eval.readiness.finding import LOOK, Finding
from trl_prorl.fast.families import is_listed
from trl_prorl.fast.trial import trial_obstacle
from trl_prorl.trainer import ProRLTrainer
from trl_prorl.upstream.modules import unwrap_adapter


ACCELERATIONS = {"shared_prompts": "pack_groups", "compact": "compact_generation"}


def family_findings(trainer) -> list[Finding]:
    """
    Return the finding about the family of the policy of a [`~trl_prorl.ProRLTrainer`], if it is not listed and
    `fast_models` does not name it.
    """
    if not isinstance(trainer, ProRLTrainer):
        return []
    policy = trainer.accelerator.unwrap_model(trainer.model)
    model = unwrap_adapter(policy)
    kind = model.config.model_type
    if is_listed(model) or kind in (trainer.args.fast_models or ()):
        return []
    obstacles = {key: trial_obstacle(name, policy) for name, key in ACCELERATIONS.items()}
    served = [key for key, obstacle in obstacles.items() if obstacle is None]
    number = f"{kind} is not listed"
    if not served:
        return [Finding("family of models", f"{number}; no acceleration serves it", values=obstacles)]
    cure = f"{' and '.join(served)} can be tried: fast_models: [{kind}]"
    return [Finding("family of models", number, cure, LOOK, obstacles)]
