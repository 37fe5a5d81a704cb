"""A run that moves to another machine: what it pushed and `hf download` fetches continues exactly."""

import shutil

import pytest
import torch
from huggingface_hub import snapshot_download
from run_record import read_events, read_rows, without_times
from slow import slow_but
from tiny_run import BEST, QUESTIONS, set_evaluations
from transformers import TrainerCallback


class KilledPush(TrainerCallback):
    """A push of a step that never reaches the Hub, and the end of the process at the next."""

    def __init__(self, hub, trainer, step):
        self.hub = hub
        self.trainer = trainer
        self.step = step

    def on_push_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.trainer._finish_current_push()
            self.hub.fail("/commit/", 500)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step + 1:
            raise KeyboardInterrupt


MOVES = {
    "beta": 0.1,
    "ref_reset_every": 2,
    "num_iterations": 2,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "hub_always_push": True,
    "hub_model_id": "someone/moves",
}


BEST_OF_ALL = BEST | {"eval_steps": 1, "save_steps": 1}
REWARDS = (0.1, 0.9, 0.2, 0.3, 0.4, 0.5)  # of its evaluations: the checkpoint of step 2 is the best


@pytest.mark.parametrize("strategy", slow_but(["checkpoint", "all_checkpoints"], "all_checkpoints"))
def test_a_run_moves_to_another_machine(online, make_trainer, tmp_path, strategy):
    """Its push of step 4 fails, it is killed in step 5, and continues from step 3 in a downloaded folder."""
    moves = MOVES | (BEST_OF_ALL if strategy == "all_checkpoints" else {})
    control = set_evaluations(make_trainer(**moves, trainer_kwargs=QUESTIONS), *REWARDS)
    control.train()
    keys = moves | {"push_to_hub": True, "hub_strategy": strategy}
    first = make_trainer(output_dir=str(tmp_path / "first"), **keys, trainer_kwargs=QUESTIONS)
    set_evaluations(first, *REWARDS)
    first.add_callback(KilledPush(online, first, 4))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first._finish_current_push()
    online.failures.clear()
    moved = tmp_path / "moved"
    snapshot_download("someone/moves", local_dir=moved)  # as `hf download` does
    shutil.rmtree(tmp_path / "first")  # on another machine its paths lead nowhere
    checkpoint = "last-checkpoint" if strategy == "checkpoint" else "checkpoint-3"
    resumed = make_trainer(output_dir=str(moved), **keys, trainer_kwargs=QUESTIONS)
    set_evaluations(resumed, *REWARDS[3 if strategy == "all_checkpoints" else 1 :])
    resumed.train(resume_from_checkpoint=str(moved / checkpoint))
    resumed._finish_current_push()
    if strategy == "all_checkpoints":
        assert resumed.step_of_weights == control.step_of_weights == 2
    assert [event["checkpoint"] for event in read_events(moved, "resume")] == [checkpoint]
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert without_times(read_rows(moved, file)) == without_times(read_rows(control.run_dir, file))
    ours, expected = (folder / "checkpoint-6" for folder in (moved, control.run_dir))
    for file in ("adapter_model.safetensors", "ref/adapter_model.safetensors"):
        assert (ours / file).read_bytes() == (expected / file).read_bytes()
    states, expected_states = (torch.load(folder / "optimizer.pt")["state"] for folder in (ours, expected))
    for index, state in expected_states.items():
        assert all(states[index][name].equal(value) for name, value in state.items())
