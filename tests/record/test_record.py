"""`config.yaml` says what a run was, `env.json` where, and a run's id stands there and beside all weights it saves."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from run_record import read_rows
from transformers import TrainerCallback

from trl_prorl import ProRLConfig
from trl_prorl.run.log_files import RUN_ID_FILE, read_json, recorded_run_id
from trl_prorl.run.provenance import write_config, write_env


def config(folder, **keys):
    return ProRLConfig(output_dir=str(folder), use_cpu=True, bf16=False, **keys)


def env_of(folder, args):
    write_env(folder, args, torch.nn.Linear(2, 3), {"packing": "off"})
    return json.loads((folder / "env.json").read_text())


@dataclass
class Some:
    given: int = 2
    kept: float = 0.5


def test_our_keys_are_always_there_and_what_trl_derives_is_not(tmp_path):
    write_config(tmp_path, config(tmp_path, beta=0.25, gradient_accumulation_steps=2), recipe=(Some(),))
    keys = yaml.safe_load((tmp_path / "config.yaml").read_text())
    # TRL's temperature always, though it is the default
    shown = {"beta": 0.25, "temperature": 1.0, "beta_old": 0.0, "optimizer_reset": "keep", "given": 2}
    assert shown.items() <= keys.items()
    assert not {"learning_rate", "generation_batch_size", "run_dir"} & keys.keys()  # the first at TRL's default


def test_env_names_versions_seed_hardware_and_execution(tmp_path):
    env = env_of(tmp_path, config(tmp_path, beta_old=0.1, num_iterations=2, reuse_old_logps=True, seed=5))
    assert {"variant": "B", "seed": 5, "parameters": 9}.items() <= env.items()
    ways = {"old_logps": "first_pass", "ref_compute": "none", "packing": "off"}
    assert env["execution"] == {"loss": "trl + added penalty", "zero_rows": "computed", **ways}
    assert env["versions"]["torch"] == torch.__version__


def test_one_id_from_the_first_checkpoint_to_the_model_at_the_end_and_through_a_resume(make_trainer, tmp_path):
    def train(name, resume=None, steps=2):
        keys = {"output_dir": str(tmp_path / name)}
        keys["max_steps"] = steps or 1
        trainer = make_trainer(**keys, num_iterations=1, save_strategy="steps", save_steps=1)
        if steps:
            trainer.train(resume_from_checkpoint=resume)
        trainer.save_model()

    train("a")
    run = recorded_run_id(tmp_path / "a")
    assert len(run) == 32
    folders = [tmp_path / "a", *(tmp_path / "a").glob("checkpoint-*")]
    assert len(folders) == 3
    assert {read_json(folder / RUN_ID_FILE)["run_id"] for folder in folders} == {run}
    train("a", resume=True, steps=3)
    assert recorded_run_id(tmp_path / "a") == run == read_json(tmp_path / "a/checkpoint-3" / RUN_ID_FILE)["run_id"]
    # Moved and resumed, it is the same run; begun from a checkpoint elsewhere, it is another.
    (tmp_path / "a").rename(tmp_path / "b")
    train("b", resume=True, steps=4)
    assert recorded_run_id(tmp_path / "b") == run == read_json(tmp_path / "b" / RUN_ID_FILE)["run_id"]
    train("fork", resume=str(tmp_path / "b/checkpoint-3"), steps=4)
    fork = recorded_run_id(tmp_path / "fork")
    assert fork != run
    assert fork == read_json(tmp_path / "fork" / RUN_ID_FILE)["run_id"]
    # A model that was not trained is no run's, wherever it is saved.
    train("b", steps=0)
    assert not (tmp_path / "b" / RUN_ID_FILE).exists()


def test_no_file_of_a_run_has_the_token_that_loads_its_model(run):
    secret = "hf_" + "a" * 30
    out = run(max_steps=1, save_strategy="steps", model_init_kwargs={"token": secret}).args.output_dir
    files = [path for path in Path(out).rglob("*") if path.is_file()]
    assert "training_args.bin" in [path.name for path in files]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


class StopsWithin(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == 1


def test_a_step_that_a_callback_cuts_short_has_no_row(run):
    trainer = run(gradient_accumulation_steps=2, trainer_kwargs={"callbacks": [StopsWithin()]})
    assert trainer.state.global_step == 1
    assert [row["step"] for row in read_rows(trainer)] == [1]
