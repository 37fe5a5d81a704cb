"""A growth of the rank in the files: what was drawn, and the engine that grows by itself against PyTorch."""

import pytest
import torch
from exchange import STATE, live_state
from test_numpy_engine import MODES, SMOOTH, TEN, ByTheEngine, of_the_embedded_model, treating, worst

from trl_prorl.interchange import UpdateInputs, read


GROWTH = {"lora_growth_every": 6, "lora_growth_step": 3}


@pytest.mark.parametrize("every", [6, 4], ids=["between two resets", "with the first reset"])
@pytest.mark.parametrize("mode", MODES)
def test_ten_updates_with_resets_and_a_growth_are_torch_s(engine, exporting, mode, every):
    """The engine begins with the first state; resets come before updates 5 and 9, growth before 7, or 5 and 9."""
    keys = TEN | GROWTH | treating(mode) | {"lora_growth_every": every}
    _, callback = exporting(**keys, trainer_kwargs=of_the_embedded_model())
    state, _ = engine.read_inputs(callback.folder / "1")
    grew, resets, clipped = [], [], 0
    for number in range(1, 11):
        inputs = engine.read_inputs(callback.folder / str(number))[1]
        grew += [number] if inputs.values["growth"] else []
        resets += [number] if inputs.values["reset"] else []
        clipped += engine.update(state, inputs)["clip_factor"] < 1.0
        found = worst(callback.after[number], {kind: getattr(state, kind) for kind in STATE})
        assert found["parameters"] < 1e-6, (number, found)
        assert max(found["exp_avg"], found["exp_avg_sq"]) < 1e-5, (number, found)
    assert (grew, resets) == ([7] if every == 6 else [5, 9], [5, 9]) and clipped >= 5
    steps = {value.item() for value in callback.after[10]["steps"].values()}
    assert steps == ({2.0} if mode in ("hard", "step") else {10.0})


def test_the_inputs_of_a_growth(exporting):
    """The state is the one before it, of the old rank; the gradients are of the new; the rows are those drawn."""
    _, callback = exporting(**TEN, **GROWTH, trainer_kwargs=of_the_embedded_model())
    inputs = read(UpdateInputs, callback.folder / "7")
    assert inputs.growth == {"old_rank": 4, "new_rank": 7}
    for name, value in callback.after[6]["parameters"].items():
        assert torch.equal(inputs.parameters[name], value) and 4 in value.shape
        side = name.split(".")[-3]
        assert inputs.gradients[name].shape[0 if side == "lora_A" else 1] == 7
        assert (name in inputs.new_rows) == (side == "lora_A")
        if name in inputs.new_rows:
            rows = inputs.new_rows[name]
            assert rows.shape == (3, value.shape[1]) and rows.std() > 0
            # B's new columns are 0, so that the new rows have no gradient and move by the decay alone.
            assert not inputs.gradients[name][4:].any()
            group = next(group for group in inputs.groups if name in group["parameters"])
            decayed = rows * (1 - group["lr"] * group["weight_decay"])
            torch.testing.assert_close(callback.after[7]["parameters"][name][4:], decayed)


@pytest.mark.parametrize("keys", [treating("hard"), treating("soft") | GROWTH], ids=["resets", "resets and growth"])
def test_a_run_whose_updates_the_engine_makes_is_the_run(engine, make_trainer, run, weights, tmp_path, keys):
    keys = TEN | SMOOTH | keys
    callback = ByTheEngine(engine, tmp_path / "exchange")
    kwargs = of_the_embedded_model() | {"callbacks": [callback]}
    trainer = callback.trainer = make_trainer(**keys, trainer_kwargs=kwargs)
    trainer.train()
    theirs = weights(run(**keys, trainer_kwargs=of_the_embedded_model()))
    assert max((value - theirs[name]).abs().max().item() for name, value in weights(trainer).items()) < 1e-6
    steps = {value.item() for value in live_state(trainer)["steps"].values()}
    assert steps == {10.0 if "lora_growth_every" in keys else 2.0}
