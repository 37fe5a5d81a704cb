"""`config.yaml` says what a run was, and `env.json` where."""

import json
from dataclasses import dataclass, field

import torch
import yaml

from trl_prorl import ProRLConfig
from trl_prorl.environment import versions
from trl_prorl.record.provenance import set_keys, write_config, write_env


def config(folder, **keys):
    return ProRLConfig(output_dir=str(folder), use_cpu=True, bf16=False, **keys)


def env_of(folder, args):
    write_env(folder, args, torch.nn.Linear(2, 3))
    return json.loads((folder / "env.json").read_text())


@dataclass
class Some:
    given: int = 1
    kept: float = 0.5
    items: list = field(default_factory=list)
    nothing: str | None = None
    thing: object = None


def test_keys_that_differ_from_their_defaults_and_can_be_spelt():
    assert set_keys(Some(given=2, items=[1], thing=object())) == {"given": 2, "items": [1]}
    assert set_keys(Some(), always=frozenset({"kept", "nothing"})) == {"kept": 0.5}


def test_our_keys_are_always_there_and_what_trl_derives_is_not(tmp_path):
    write_config(tmp_path, config(tmp_path, beta=0.25, gradient_accumulation_steps=2), recipe=(Some(),))
    keys = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert keys["beta"] == 0.25 and keys["beta_old"] == 0.0 and keys["optimizer_reset"] == "keep"
    assert keys["given"] == 1 and "generation_batch_size" not in keys and "run_dir" not in keys


def test_a_build_of_torch_is_named_whatever_its_package_says(monkeypatch):
    """The wheel of PyPI calls itself 2.13.0, and torch 2.13.0+cu130."""
    monkeypatch.setattr("torch.__version__", "2.13.0+cu130")
    assert versions()["torch"] == "2.13.0+cu130"


def test_a_gpu_is_named_if_the_run_is_on_it(tmp_path, monkeypatch):
    """A run with `use_cpu: true` on a machine that has one is a run on a CPU, also for its card."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a card")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    args = config(tmp_path)
    assert "gpu" not in env_of(tmp_path, args)["hardware"]
    # DeepSpeed and FSDP move the weights there only once the record is begun.
    monkeypatch.setattr(ProRLConfig, "device", torch.device("cuda", 0))
    assert env_of(tmp_path, args)["hardware"]["gpu"] == "a card"


def test_env_names_versions_seed_hardware_and_execution(tmp_path):
    env = env_of(tmp_path, config(tmp_path, beta_old=0.1, num_iterations=2, reuse_old_logps=True, seed=5))
    assert env["variant"] == "B" and env["seed"] == 5 and env["parameters"] == 9
    ways = {"old_logps": "first_pass", "ref_compute": "none", "packing": "off"}
    assert env["execution"] == {"loss": "trl + added penalty", **ways}
    assert env["versions"]["torch"] == torch.__version__ and "git_commit" in env and env["hardware"]["cpus"] > 0
