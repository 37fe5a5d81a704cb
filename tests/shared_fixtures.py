"""Fixtures that all tests share: a tiny model, ways to train it, real processes, and a Hub on loopback."""

import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from hub_cache import fill_hf_home
from hub_server import TOKEN, HubServer, constants_for
from huggingface_hub import constants
from once import do_once
from peft import LoraConfig
from tiny_run import LORA, SETTINGS, new_trained_adapter, save_tiny_model, vowels
from tool_run import tools_tokenizer
from transformers import AutoTokenizer
from trl import GRPOConfig

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import byte_tokenizer


torch.set_num_threads(1)
do_once()


def pytest_collection_finish(session):
    """
    Freeze the modules of torch and transformers. Every training begins with `gc.collect()`, which needs a third of a
    second to walk them: half the time of a training of this size. They stay, so the collector need not look at them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Return the path of a tiny Qwen2 that reads bytes."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), byte_tokenizer())


@pytest.fixture(scope="session")
def tools_model(tmp_path_factory):
    """Return the path of a tiny Qwen2 whose chat template has tools."""
    return save_tiny_model(tmp_path_factory.mktemp("tools"), tools_tokenizer())


class Forks:
    """Start real processes without the seconds that their imports cost: see forks/server.py."""

    hub = None  # the address of the Hub that they talk to

    def __init__(self, **env):
        command = [sys.executable, str(Path(__file__).parent / "forks" / "server.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(command, env={**os.environ, **env}, **pipes)

    def start(self, **order):
        """Start a process, and return its id."""
        self.server.stdin.write(json.dumps(order | {"hub": self.hub}) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def status(self):
        """Wait for the process to end, and return its exit status; -9 is a kill."""
        return int(self.server.stdout.readline())

    def run(self, script, *argv, cwd=None, env=None, terminal=False):
        """
        Run a script, `"-m"` and a module, or `"exec"` and a program, to its end. Return its exit status, and what it
        wrote to stdout and stderr, or onto a terminal.
        """
        order = {
            "run": str(script),
            "argv": [str(argument) for argument in argv],
            "cwd": str(cwd or Path.cwd()),
            "env": env or {},
        }
        with tempfile.NamedTemporaryFile("r", newline="") as log:
            self.start(**order, log=log.name, terminal=terminal)
            return self.status(), log.read()

    def close(self):
        self.server.stdin.close()
        self.server.wait()


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Return `Forks` in whose Hub cache are a small model and GSM8K of 2 and 4 rows, see hub_cache.py."""
    home = tmp_path_factory.mktemp("hf_home")
    fill_hf_home(home, train=2, test=4)
    forks = Forks(HF_HOME=str(home), HF_HUB_OFFLINE="1")
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def hub_server():
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def hub(hub_server):
    """Return an empty Hub on loopback, see hub_server.py."""
    hub_server.reset()
    return hub_server


@pytest.fixture
def online(hub, monkeypatch):
    """Let this process's client talk to `hub`."""
    for name, value in constants_for(hub.url).items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


@pytest.fixture
def hub_forks(forks, hub, monkeypatch):
    """Return `forks` for processes whose Hub is `hub`."""
    monkeypatch.setattr(forks, "hub", hub.url)
    return forks


@pytest.fixture(scope="session")
def device(request):
    """Return the device of the trainings: a GPU under `pytest -m gpu`, as `make gpu-check` calls it, else the CPU."""
    if request.config.option.markexpr != "gpu":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    # Sums in the same order every time. The backward of a fused attention may add in any order all the same.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    for enable in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, enable)(False)
    return "cuda"


@pytest.fixture
def make_trainer(tiny_model, tmp_path, device):
    """Return a function that builds a trainer: `make_trainer(ProRLTrainer, lora=True, beta=0.1, ...)`."""
    counter = iter(range(1000))

    def make(
        cls=ProRLTrainer, lora=True, reward=vowels, model=None, prompts=16, trainer_kwargs=None, columns=None, **keys
    ):
        defaults = {
            "output_dir": str(tmp_path / f"run{next(counter)}"),
            "max_steps": 4,
            "num_iterations": 2,
            "per_device_train_batch_size": 8,
            "lr_scheduler_type": "constant",
            "use_cpu": device == "cpu",
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            **SETTINGS,
        }
        texts = [f"say {i * 37 % 101}" + "!" * (i % 3) for i in range(prompts)]
        rows = {"prompt": [[{"role": "user", "content": text}] for text in texts], **(columns or {})}
        given = {
            "model": tiny_model if model is None else model,
            "train_dataset": Dataset.from_dict(rows),
            "processing_class": AutoTokenizer.from_pretrained(tiny_model),
            "reward_funcs": reward,
            "peft_config": LoraConfig(**LORA) if lora else None,
            **(trainer_kwargs or {}),
        }
        config_class = ProRLConfig if issubclass(cls, ProRLTrainer) else GRPOConfig
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cls(args=config_class(**{**defaults, **keys}), **given)

    return make


@pytest.fixture
def run(make_trainer):
    """Return a function that builds a trainer and trains it at once: building sets the seed, so the order matters."""

    def build_and_train(*args, **kwargs):
        trainer = make_trainer(*args, **kwargs)
        trainer.train()
        return trainer

    return build_and_train


@pytest.fixture
def resume(make_trainer):
    """Return a function that resumes a run from its checkpoint of a step: `resume(run, step, beta=0.1, ...)`."""

    def from_checkpoint(run, step, *args, **kwargs):
        trainer = make_trainer(*args, **kwargs)
        trainer.train(resume_from_checkpoint=str(Path(run.args.output_dir, f"checkpoint-{step}")))
        return trainer

    return from_checkpoint


@pytest.fixture
def trained_adapter(tiny_model):
    """Return a function that makes a `PeftModel` whose adapter is not zero, as after earlier training."""
    return lambda: new_trained_adapter(tiny_model, **LORA)


@pytest.fixture
def weights():
    """Return a function that copies the trained parameters of a trainer's model, by name."""

    def collect(trainer):
        model = trainer.accelerator.unwrap_model(trainer.model)
        return {
            name: param.detach().clone()
            for name, param in model.named_parameters()
            if ".ref." not in name and "base_layer" not in name
        }

    return collect


@pytest.fixture
def largest_difference(weights):
    """
    Return a function that computes the largest absolute difference between the trained weights of two trainers. Key
    biases do not count: attention does not depend on them, so their gradient is rounding noise, which Adam blows up to
    the size of an update.
    """

    def compare(first, second):
        a = weights(first)
        b = weights(second)
        assert a.keys() == b.keys()
        return max((a[name] - b[name]).abs().max().item() for name in a if not name.endswith("k_proj.bias"))

    return compare
