"""An engine that shares no code with the trainer makes its updates: PyTorch is the control."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exchange import EXAMPLES, A, B, live_state, norm_of
from transformers import AutoTokenizer, TrainerCallback

from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.interchange import UpdateInputs, UpdateOutputs, read, write


MODES = ("keep", "hard", "soft", "asym", "step", "scale(0.5, 0.25)", "scale(0.5, 0.25, step)")


def worst(theirs, ours):
    """The largest difference of parameters; of moments relative to the largest of its tensor."""
    found = {"parameters": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
    for kind in found:
        for name, value in theirs[kind].items():
            value = value.double().numpy()
            scale = 1.0 if kind == "parameters" else np.abs(value).max() + 1e-30
            found[kind] = max(found[kind], np.abs(value - ours[kind][name]).max() / scale)
    return found


# ------------------------------------------------------------------------------- by hand, with torch's own optimizer


def by_torch(inputs, params, moments, t, kind=torch.optim.AdamW):
    """Parameters and moments after an update by torch's optimizer."""
    optimizer = kind(params.values(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for name, param in params.items():
        param.grad = inputs.gradients[name].to(param.dtype)
        optimizer.state[param] = {"step": torch.tensor(float(t)), **moments[name]}
    if inputs.clip_norm:
        torch.nn.utils.clip_grad_norm_(params.values(), inputs.clip_norm)
    optimizer.step()
    found = {"parameters": {name: param.detach() for name, param in params.items()}}
    for key in ("exp_avg", "exp_avg_sq"):
        found[key] = {name: optimizer.state[param][key] for name, param in params.items()}
    return found


@pytest.mark.parametrize("decoupled", [True, False], ids=["AdamW", "Adam"])
@pytest.mark.parametrize("mode", MODES)
def test_growth_and_reset_at_one_boundary_are_torch_s(engine, grown_and_reset, tmp_path, mode, decoupled):
    inputs = grown_and_reset(mode, clip_norm=0.5)
    inputs.groups[0]["decoupled"] = decoupled
    write(inputs, tmp_path)
    engine.main(tmp_path)
    outputs = read(UpdateOutputs, tmp_path)

    # The same in torch, by hand: parameters, moments and t as the modes say, then its optimizer.
    zeros = {A: torch.zeros(1, 3), B: torch.zeros(4, 1)}

    def grown(of, name, new=zeros):
        return torch.cat([of[name], new[name]], dim=(A, B).index(name))

    rows = {A: inputs.new_rows[A], B: zeros[B]}
    params = {name: torch.nn.Parameter(grown(inputs.parameters, name, rows)) for name in (A, B)}
    treated = {"keep": (1, 1, 7), "hard": (0, 0, 0), "soft": (0.25, 0.25, 7), "asym": (0, 1, 7), "step": (1, 1, 0)}
    scaled = {"scale(0.5, 0.25)": (0.5, 0.25, 7), "scale(0.5, 0.25, step)": (0.5, 0.25, 0)}
    on_m, on_v, t = (treated | scaled)[mode]
    moments = {}
    for name in (A, B):
        m, v = grown(inputs.exp_avg, name), grown(inputs.exp_avg_sq, name)
        moments[name] = {"exp_avg": on_m * m, "exp_avg_sq": on_v * v}
    theirs = by_torch(inputs, params, moments, t, torch.optim.AdamW if decoupled else torch.optim.Adam)
    for name in (A, B):
        torch.testing.assert_close(outputs.parameters[name], theirs["parameters"][name], rtol=0, atol=1e-6)
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(getattr(outputs, key)[name], theirs[key][name], rtol=1e-6, atol=1e-9)
        assert outputs.steps[name].item() == t + 1


def test_a_parameter_without_a_gradient_stays(engine, hand_made, tmp_path):
    inputs = hand_made()
    del inputs.gradients[B]
    inputs.grad_norm = norm_of(inputs.gradients)
    write(inputs, tmp_path)
    engine.main(tmp_path)
    outputs = read(UpdateOutputs, tmp_path)
    assert torch.equal(outputs.parameters[B], inputs.parameters[B])
    assert outputs.steps[B].item() == 7.0
    assert not torch.equal(outputs.parameters[A], inputs.parameters[A])
    assert outputs.steps[A].item() == 8.0


def test_it_needs_numpy_alone(hand_made, tmp_path):
    write(hand_made(), tmp_path)
    script = EXAMPLES / "numpy_engine" / "engine.py"
    code = (
        f"import runpy, sys; sys.modules |= dict.fromkeys({['safetensors', 'torch', 'trl_prorl', 'transformers']}); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"  # an import of them fails
    )
    command = [sys.executable, "-c", code, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read(UpdateOutputs, tmp_path).update == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_in_halves_is_torch_s_to_a_rounding(engine, hand_made, tmp_path, dtype):
    inputs = hand_made(clip_norm=0.0)
    for kind in ("parameters", "gradients", "exp_avg", "exp_avg_sq"):
        for name, value in getattr(inputs, kind).items():
            getattr(inputs, kind)[name] = value.to(dtype)
    inputs.grad_norm = norm_of(inputs.gradients) * 1.003  # as rounded as a norm in bfloat16 is
    write(inputs, tmp_path)
    engine.main(tmp_path)
    outputs = read(UpdateOutputs, tmp_path)
    params = {name: torch.nn.Parameter(inputs.parameters[name].double()) for name in (A, B)}
    kinds = ("exp_avg", "exp_avg_sq")
    moments = {name: {kind: getattr(inputs, kind)[name].double() for kind in kinds} for name in (A, B)}
    theirs = by_torch(inputs, params, moments, 7)

    def joined(state):
        tensors = [state[kind][name] for kind in ("parameters", *kinds) for name in (A, B)]
        return torch.cat([tensor.to(dtype).flatten() for tensor in tensors])

    ours = joined(vars(outputs))
    theirs = joined(theirs)
    torch.testing.assert_close(ours, theirs, rtol=torch.finfo(dtype).eps, atol=0)
    assert (ours != theirs).sum() <= 1  # of 42: torch takes float64 to float16 in two roundings


@pytest.mark.parametrize("damage", ["hash", "tensor", "cut"])
def test_it_refuses_what_is_not_whole(engine, hand_made, tmp_path, damage):
    write(hand_made(), tmp_path)
    if damage == "hash":
        path = tmp_path / "inputs.json"
        path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    else:
        data = bytearray((tmp_path / "inputs.safetensors").read_bytes())
        data[-1] ^= 1
        (tmp_path / "inputs.safetensors").write_bytes(data if damage == "tensor" else data[:-1])
    with pytest.raises(SystemExit, match="cut" if damage == "cut" else "hash"):
        engine.main(tmp_path)
    assert not (tmp_path / "outputs.json").exists()


# ------------------------------------------------------------------------------------------- a real trainer with LoRA

TEN = {
    "model": embedded_model(),
    "max_steps": 10,
    "beta": 0.1,
    "ref_reset_every": 4,
    "optimizer_reset_rewarmup_steps": 3,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.1,
    "max_grad_norm": 0.1,
}

# With the usual ε of 1e-8 Adam makes a step of a gradient that is rounding noise, and a run amplifies it.
SMOOTH = {"adam_epsilon": 1e-2}


def treating(mode):
    """The keys of an optimizer mode."""
    return {"optimizer_reset": mode} | ({"optimizer_reset_alpha": 0.25} if mode == "soft" else {})


def of_the_embedded_model():
    return {"processing_class": AutoTokenizer.from_pretrained(embedded_model())}


class Overflows(TrainerCallback):
    """NaN in every gradient of the first step: `nonfinite: skip` makes no update, and an export waits for the next."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        trained = [param for param in model.parameters() if param.requires_grad and state.global_step == 0]
        self.handles = [param.register_hook(lambda grad: grad * float("nan")) for param in trained]

    def on_step_end(self, args, state, control, **kwargs):
        for handle in self.handles:
            handle.remove()


GROWTH = {"lora_growth_every": 6, "lora_growth_step": 3}


def assert_growth(inputs, before, after):
    """The state is the one before it, of the old rank; the gradients are of the new; the rows are those drawn."""
    rank = inputs.growth["old_rank"]
    assert inputs.growth["new_rank"] == rank + 3
    for name, value in before["parameters"].items():
        assert torch.equal(inputs.parameters[name], value)
        assert rank in value.shape
        side = name.split(".")[-3]
        assert inputs.gradients[name].shape[0 if side == "lora_A" else 1] == rank + 3
        assert (name in inputs.new_rows) == (side == "lora_A")
        if name in inputs.new_rows:
            rows = inputs.new_rows[name]
            assert rows.shape == (3, value.shape[1])
            assert rows.std() > 0
            # B's new columns are 0, so that the new rows have no gradient and move by the decay alone.
            assert not inputs.gradients[name][rank:].any()
            group = next(group for group in inputs.groups if name in group["parameters"])
            torch.testing.assert_close(after["parameters"][name][rank:], rows * (1 - group["lr"] * 0.1))


@pytest.mark.parametrize("mode, every", [("keep", 6), ("hard", 4), ("soft", 4), ("asym", 6), ("step", 6)])
def test_ten_updates_with_resets_and_a_growth_are_torch_s(engine, exporting, mode, every):
    """The engine begins with the first state; resets come before updates 5 and 9, growth before 7, or 5 and 9."""
    keys = TEN | GROWTH | treating(mode) | {"lora_growth_every": every}
    _, callback = exporting(**keys, trainer_kwargs=of_the_embedded_model())
    state, *_ = engine.read_inputs(callback.folder / "1")
    grew = []
    resets = []
    clipped = 0
    for number in range(1, 11):
        folder = callback.folder / str(number)
        inputs, _, sidecar = engine.read_inputs(folder)
        values = sidecar["values"]
        if values["growth"]:
            grew.append(number)
            assert_growth(read(UpdateInputs, folder), callback.after[number - 1], callback.after[number])
        resets += [number] if values["reset"] else []
        state |= {kind: inputs[kind] for kind in ("gradients", "new_rows")}
        clipped += engine.update(state, values)["clip_factor"] < 1.0
        found = worst(callback.after[number], state)
        assert found["parameters"] < 1e-6, (number, found)
        assert max(found["exp_avg"], found["exp_avg_sq"]) < 1e-5, (number, found)
    assert (grew, resets) == ([7] if every == 6 else [5, 9], [5, 9])
    assert clipped >= 5
    steps = {value.item() for value in callback.after[10]["steps"].values()}
    assert steps == ({2.0} if mode in ("hard", "step") else {10.0})


PAGE = (EXAMPLES.parent / "interchange.md").read_text()
RUNS = {
    "resets": (treating("hard"), 2.0),
    "resets and growth": (treating("soft") | GROWTH, 10.0),
    "a step left out": ({"nonfinite": "skip"}, 9.0),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_whose_updates_the_engine_makes_by_the_callbacks_of_the_page_is_the_run(
    engine, make_trainer, run, weights, tmp_path, monkeypatch, case
):
    keys, updates = RUNS[case]
    keys = TEN | SMOOTH | keys
    others = [Overflows()] if "nonfinite" in keys else []
    theirs = weights(run(**keys, trainer_kwargs=of_the_embedded_model() | {"callbacks": others}))
    monkeypatch.chdir(tmp_path)
    names = {"run_the_engine": engine.main}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    callback = names["Foreign"]()
    kwargs = of_the_embedded_model() | {"callbacks": [*others, callback]}
    trainer = callback.trainer = make_trainer(**keys, trainer_kwargs=kwargs)
    trainer.train()
    assert max((value - theirs[name]).abs().max().item() for name, value in weights(trainer).items()) < 1e-6
    assert {value.item() for value in live_state(trainer)["steps"].values()} == {updates}
    done = [number for number in range(1, 11) if not (others and number == 1)]  # its export waited for the second step
    folders = [Path("exchange", f"{1 if others and number == 2 else number:05d}") for number in done]
    assert sorted(Path("exchange").iterdir()) == folders
    assert all((folder / "outputs.json").is_file() for folder in folders)
