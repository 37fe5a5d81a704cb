"""
What makes a resumed run the same run: every argument that can change a number, the data, and the model it began from.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from datasets import Dataset

from ..adapters.initialisation import changes_model
from .folder import as_plain


IDENTITY_FILE = "identity.json"

# Where things are written, shown and sent, and how long to wait for them: no number of the run depends on these keys.
HARMLESS = frozenset(
    "output_dir run_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter "
    "log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id save_only_model save_strategy save_steps save_on_each_node save_total_limit "
    "enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision hub_push_reference dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context skip_memory_metrics resume_from_checkpoint "
    "allow_config_change local_rank do_train do_eval do_predict ddp_timeout log_completions log_multimodal "
    "num_completions_to_print log_unique_prompts log_completions_hub_repo include_num_input_tokens_seen "
    "restore_callback_states_from_checkpoint reward_timeout log_update_norm vllm_server_base_url vllm_server_host "
    "vllm_server_port vllm_server_timeout vllm_group_port "
    # Told apart by content, see `dataset_hash` and `weights_hash`.
    "model_name_or_path dataset_name".split()
)
# With these the rates of the past do not depend on the length of the run.
ENDLESS_SCHEDULES = ("constant", "constant_with_warmup")
LENGTHS = frozenset(["max_steps", "num_train_epochs"])
ROWS_HASHED = 20_000


def changing_keys(*configs: Any) -> dict[str, Any]:
    """
    The arguments on which the numbers of a run depend, as JSON values.

    Args:
        configs (dataclass instances):
            The trainer's configuration, and what else a recipe holds.
    """
    keys = {}
    for config in configs:
        left_out = HARMLESS
        if str(getattr(getattr(config, "lr_scheduler_type", None), "value", "")) in ENDLESS_SCHEDULES:
            left_out = HARMLESS | LENGTHS
        for field in dataclasses.fields(config):
            if field.init and field.name not in left_out:
                keys[field.name] = as_plain(getattr(config, field.name, None))
    return json.loads(json.dumps(keys))


def dataset_hash(dataset: Any) -> str | None:
    """Hash of a dataset's content, of evenly spaced rows if it is large; `None` if it cannot be indexed."""
    if not isinstance(dataset, Dataset):
        return None
    digest = hashlib.sha256(str(len(dataset)).encode())
    rows = dataset.select(range(0, len(dataset), max(1, len(dataset) // ROWS_HASHED)))
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
    return digest.hexdigest()


@torch.no_grad()
def weights_hash(named_tensors: Iterable[tuple[str, torch.Tensor]], sample: int = 64) -> str:
    """
    Hash of names, shapes and a few values of every tensor: enough to tell one model from another, at no cost.

    Args:
        named_tensors (`Iterable[tuple[str, torch.Tensor]]`):
            Parameters by name.
        sample (`int`, *optional*, defaults to `64`):
            Values that are read at each end of a tensor.
    """
    digest = hashlib.sha256()
    for name, tensor in named_tensors:
        flat = tensor.detach().flatten()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        for part in (flat[:sample], flat[-sample:]):
            digest.update(part.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def base_parameters(policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters that a policy took over from its model: without adapters, and without what adapters change."""
    configs = getattr(policy, "peft_config", {})
    others = set(configs)
    if changes_model(configs.get("default")):  # by singular vectors, whose last bits differ between machines
        others.add("base_layer")
    return [(name, param) for name, param in policy.named_parameters() if others.isdisjoint(name.split("."))]


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """
    `{key: [then, now]}` for every key of both that differs. A key that only one of them knows is not a difference:
    another version of the project may have written it.
    """
    return {key: [then[key], now[key]] for key in sorted(then) if key in now and then[key] != now[key]}


def check_same_run(then: Mapping[str, Any], now: Mapping[str, Any], allowed: bool) -> dict[str, list[Any]]:
    """
    Refuse a resume that would change the run.

    Args:
        then (`Mapping`), now (`Mapping`):
            What a checkpoint says, and what is asked now.
        allowed (`bool`):
            `allow_config_change`.

    Returns:
        `dict[str, list]`: the differences, `{key: [then, now]}`.

    Raises:
        `ValueError`: there are differences, and they are not allowed.
    """
    changed = differences(then, now)
    if changed and not allowed:
        listed = "; ".join(f"{key}: {_short(old)} -> {_short(new)}" for key, (old, new) in changed.items())
        raise ValueError(
            f"resume_from_checkpoint with other arguments would change the run: {listed}. Restore them, or set "
            "allow_config_change: true, which logs the change as an event."
        )
    return changed


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
