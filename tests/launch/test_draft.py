"""What a recipe and a command line alone make wrong is refused before torch, transformers and TRL are imported."""

from types import SimpleNamespace

import pytest
import torch
import yaml
from no_libraries import ROOT, without_libraries
from run_record import write_run

from trl_prorl import ProRLConfig, environment
from trl_prorl.launch import draft as draft_module
from trl_prorl.launch.command_line import check_arguments
from trl_prorl.launch.draft import Draft
from trl_prorl.launch.recipe_keys import declared_keys
from trl_prorl.launch.shipped_recipes import shipped_recipes


SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
BATCH = "num_generations=3 does not divide the 8 completions of a generation batch (per_device_train_batch_size=8, "
REFUSED = [
    ({"beta_odl": 1}, [], "unknown key 'beta_odl' (did you mean 'beta_old'?)."),
    ({"num_generations": 3}, [], BATCH),
    ({}, ["--num_generations", "3"], BATCH),
    ({"num_generations": 4, "per_device_train_batch_size": 3}, [], "num_generations=4 does not divide the 3"),
    ({"num_generations": [4]}, [], "num_generations=[4] is a list, and num_generations takes a whole number"),
    ({"learning_rate": "fast"}, [], "learning_rate='fast' is text, and learning_rate takes a number."),
    ({}, ["--learning_rate", "fast"], "--learning_rate 'fast' cannot be read: learning_rate takes a number."),
    ({"use_cpu": "maybe"}, [], "use_cpu='maybe' is text, and use_cpu takes true or false."),
    ({"ref_reset_mix": 2}, [], "ref_reset_mix=2 must be in [0, 1]"),
    ({}, ["--ref_reset_mix", "2"], "ref_reset_mix=2.0 must be in [0, 1]"),
    ({"loss_type": "drgrpo"}, [], "loss_type='drgrpo' is not one of grpo, bnpo"),
    ({"lora_r": 0}, [], "lora_r=0 must be a whole number from 1."),
    ({"kl_clamp": 1.0}, [], "kl_clamp=1.0 bounds the KL to an anchor, and there is none."),
    ({"bf16": "auto", "dtype": "float32"}, [], "bf16: auto chooses dtype, too"),
    ({"output_dir": "taken"}, [], "output_dir='taken' already holds a run (taken/metrics.jsonl)"),
    ({"output_dir": "run", "run_dir": "/proc/run"}, [], "run_dir='/proc/run' cannot be written"),
    ({"output_dir": "theirs"}, [], "output_dir='theirs' holds config.json: a run would overwrite that"),
]


@pytest.mark.parametrize(("keys", "options", "begins"), REFUSED, ids=[begins[:40] for _, _, begins in REFUSED])
def test_it_is_refused_where_no_library_can_be_imported(tmp_path, monkeypatch, capsys, keys, options, begins):
    write_run(tmp_path / "taken", {"output_dir": "taken"}, [{"step": 1}])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump({"task": "sums", "use_cpu": True, "bf16": False, **keys}))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        check_arguments(None, ["--config", "arm.yaml", *options])
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert begins in line
    assert line.startswith("error: ") and line.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["train", "script", "preflight"])
def test_each_door_refuses_before_it_imports_a_library(tmp_path, command):
    (tmp_path / "arm.yaml").write_text("task: sums\nuse_cpu: true\nbf16: false\nnum_generations: 3\n")
    start = {"script": [SCRIPT, "--config"], "train": ["-m", "trl_prorl", "train"]}
    done = without_libraries(*start.get(command, ["-m", "trl_prorl", command]), str(tmp_path / "arm.yaml"))
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.startswith(f"error: {BATCH}")
    assert done.stderr.count("\n") == 1


COMMANDS = {
    "train": ["trl_prorl", "train", "tiny/variantA"],
    "script": [SCRIPT],
    "preflight": ["trl_prorl", "preflight", "tiny/variantA"],
    "passk": ["trl_prorl", "passk", "--run", "RUN"],
    "drift": ["trl_prorl", "drift", "--run", "RUN"],
    "report": ["trl_prorl", "report", "--runs", "RUN"],
    "compare": ["trl_prorl", "compare", "--runs", "RUN", "OTHER"],
    "gpu-check": ["trl_prorl", "gpu-check", "--cpu"],
    "smollm2": ["trl_prorl", "smollm2"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_line_comes_before_any_library(tmp_path, name):
    """Here none can be imported: the line is there, and then the import fails, or there is nothing more to import."""
    for folder in ("run", "other"):
        config = {"model_name_or_path": "embedded", "task": "reverse_digits"}
        write_run(tmp_path / folder, config, [{"step": 1, "reward": 0.5}])
    places = {"RUN": str(tmp_path / "run"), "OTHER": str(tmp_path / "other")}
    words = [places.get(word, word) for word in COMMANDS[name]]
    if name in ("train", "script", "preflight"):
        words += ["--output_dir", str(tmp_path / "new")]
    start = [] if name == "script" else ["-m"]
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home")}
    done = without_libraries(*start, *words, env=env | {"PIP_NO_INDEX": "1"})
    said = "train" if name == "script" else name
    first = done.stderr.partition("\n")[0]
    assert first.startswith(f"{said}: "), done.stderr[-2000:]
    assert done.returncode != 0


def test_the_list_of_tasks_needs_no_library():
    done = without_libraries("-m", "trl_prorl", "tasks", "list")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "reverse_digits" in done.stdout
    assert done.stderr == ""


def draft(**keys):
    return Draft({"use_cpu": True, "bf16": False, "output_dir": "no/such/folder", **keys}, declared_keys())


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"steps_per_generation": 2},
        {"generation_batch_size": 32},
        {"fp16": True, "bf16": None},
        {"bf16": None},
        {"pack_groups": True, "resume_from_checkpoint": False},
        {"fast": True},
    ],
)
def test_a_draft_is_completed_as_the_configuration_is(monkeypatch, keys, processes):
    """TRL is the control."""
    monkeypatch.setattr(ProRLConfig, "world_size", processes)
    monkeypatch.setattr(draft_module, "started_processes", lambda: processes)
    made = draft(**keys)
    made.check()
    control = ProRLConfig(**{"use_cpu": True, "bf16": False, "output_dir": "no/such/folder", **keys})
    for key in ("steps_per_generation", "generation_batch_size", "bf16", "pack_groups", "reuse_old_logps"):
        assert getattr(made, key) == getattr(control, key), key


@pytest.mark.parametrize("name", shipped_recipes())
def test_no_recipe_that_comes_with_the_package_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(draft_module, "torch_finds_no_gpu", lambda: False)
    argv = ["--config", name, "--output_dir", str(tmp_path / "run")]
    assert check_arguments(None, argv).recipe is not None


def test_a_resume_may_have_the_folder_of_its_run_and_the_other_processes_of_a_run_ask_the_first(tmp_path, monkeypatch):
    write_run(tmp_path / "run", {}, [{"step": 1}])
    taken = {"output_dir": str(tmp_path / "run")}
    with pytest.raises(ValueError, match="already holds a run"):
        draft(**taken).check()
    draft(**taken, resume_from_checkpoint=True).check()
    monkeypatch.setattr(draft_module, "started_processes", lambda: 2)
    draft(**taken).check()


CPU_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
CUDA_BUILD = CPU_BUILD.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '12.8'")


@pytest.mark.parametrize(
    ("version", "driver", "package", "none"),
    [
        (CPU_BUILD, False, None, True),
        (CUDA_BUILD, False, None, True),
        (CUDA_BUILD, True, None, False),
        (CPU_BUILD.replace("hip: Optional[str] = None", "hip: Optional[str] = '6.4'"), False, None, False),
        (CPU_BUILD, False, "torch_xla", False),
        ("debug = False\n", False, None, False),
    ],
)
def test_what_is_known_of_a_gpu_before_torch_is_imported(tmp_path, monkeypatch, version, driver, package, none):
    (tmp_path / "version.py").write_text(version)
    specs = {"torch": SimpleNamespace(origin=str(tmp_path / "__init__.py")), package: SimpleNamespace()}

    def load(name):
        assert name == "libcuda.so.1"
        if not driver:
            raise OSError(name)

    monkeypatch.setattr(environment, "find_spec", specs.get)
    monkeypatch.setattr(environment.ctypes, "CDLL", load)
    assert environment.torch_finds_no_gpu() is none


def test_it_is_never_said_of_a_machine_on_which_torch_finds_one():
    assert not (environment.torch_finds_no_gpu() and torch.cuda.is_available())


@pytest.mark.parametrize(
    ("keys", "begins"),
    [({"bf16": None}, "bf16=True, the default, needs a GPU"), ({"bf16": True}, "bf16=True needs a GPU")],
)
def test_bf16_is_refused_where_there_can_be_no_gpu(monkeypatch, keys, begins):
    monkeypatch.setattr(draft_module, "torch_finds_no_gpu", lambda: True)
    with pytest.raises(ValueError, match=f"^{begins}"):
        draft(use_cpu=False, **keys).check()
    draft(**keys).check()
    monkeypatch.setattr(draft_module, "torch_finds_no_gpu", lambda: False)
    draft(use_cpu=False, **keys).check()  # torch will say
