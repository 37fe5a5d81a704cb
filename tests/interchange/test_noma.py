"""The NOMA programs of docs/examples: what is written for an export, and, where NOMA is installed, its numbers."""

import shutil
import subprocess

import pytest
import torch
from exchange import EXAMPLES, A, B, script
from safetensors.torch import load_file, save_file

from trl_prorl.interchange import UpdateOutputs, read, write


NOMA = shutil.which("noma")


@pytest.fixture(scope="module")
def program():
    return script(EXAMPLES / "noma" / "program.py")


def test_the_committed_program_is_the_one_of_a_layer_that_grows(program, grown_and_reset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(grown_and_reset(), "exchange")
    assert program.program_for("exchange") == (EXAMPLES / "noma" / "update.noma").read_text()


def test_noma_gets_one_tensor_a_file_in_f32_or_f64_with_a_shape(program, hand_made, tmp_path):
    inputs = hand_made(reset={"mode": "asym", "alpha": 0.1, "restarts_schedule": False, "rewarmup_steps": 0})
    inputs.parameters[A] = inputs.parameters[A].bfloat16()
    write(inputs, tmp_path)
    program.spread(tmp_path)
    found = {}
    for path in (tmp_path / "inputs").iterdir():
        held = load_file(path)
        assert list(held) == [path.name.removesuffix(".safetensors")]
        assert path.stem.isidentifier()
        (tensor,) = held.values()
        assert tensor.dtype in (torch.float32, torch.float64) and tensor.shape, path
        found |= held
    assert found["p0002"].equal(inputs.parameters[B])
    assert found["g0001"].equal(inputs.gradients[A])
    assert found["m0002"].equal(inputs.exp_avg[B])
    assert found["t0001"].tolist() == [7.0]
    assert found["p0001"].equal(inputs.parameters[A].float())
    numbers = {"lr_1": 0.01, "beta2_1": 0.999, "clip_norm": 1.0, "reset_m": 0.0, "reset_v": 1.0, "reset_t": 1.0}
    assert {name: found[name].item() for name in numbers} == numbers


def test_the_outputs_of_a_program_get_their_sidecar(program, hand_made, tmp_path):
    inputs = hand_made()
    told = write(inputs, tmp_path)
    program.spread(tmp_path)
    for number, name in enumerate(inputs.names, start=1):
        for letter, kind in (("p", "parameters"), ("m", "exp_avg"), ("v", "exp_avg_sq"), ("t", "steps")):
            key = f"{letter}{number:04d}"
            save_file({key: getattr(inputs, kind)[name].double()}, tmp_path / "outputs" / f"{key}.safetensors")
    program.gather(tmp_path)
    outputs = read(UpdateOutputs, tmp_path)
    assert outputs.inputs == told
    assert outputs.update == 8
    assert outputs.parameters[B].equal(inputs.parameters[B])
    assert outputs.parameters[B].dtype == torch.float32
    (tmp_path / "outputs" / "v0002.safetensors").unlink()
    with pytest.raises(SystemExit, match=f"tensor exp_avg_sq/{B}".replace(".", r"\.")):
        program.gather(tmp_path)


@pytest.mark.skipif(NOMA is None, reason="there is no noma here")
@pytest.mark.parametrize("decoupled", [True, False], ids=["AdamW", "Adam"])
def test_noma_agrees_with_the_engine_in_numpy(program, engine, grown_and_reset, tmp_path, decoupled):
    inputs = grown_and_reset()
    inputs.groups[0]["decoupled"] = decoupled
    for name in ("plain", "noma"):
        write(inputs, tmp_path / name)
    engine.main(tmp_path / "plain")
    program.spread(tmp_path / "noma")
    (tmp_path / "update.noma").write_text(program.program_for(str(tmp_path / "noma")))
    subprocess.run([NOMA, "run", str(tmp_path / "update.noma")], check=True, capture_output=True)
    program.gather(tmp_path / "noma")
    theirs, ours = (read(UpdateOutputs, tmp_path / name) for name in ("plain", "noma"))
    for name, value in theirs.tensors().items():
        torch.testing.assert_close(ours.tensors()[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(NOMA is None, reason="there is no noma here")
def test_noma_s_own_adam_makes_the_update_after_a_hard_reset(program, engine, hand_made, tmp_path):
    reset = {"mode": "hard", "alpha": 0.1, "restarts_schedule": False, "rewarmup_steps": 0}
    inputs = hand_made(clip_norm=0.0, reset=reset)
    inputs.groups[0]["weight_decay"] = 0.0
    for folder in ("plain", "exchange"):
        write(inputs, tmp_path / folder)
    engine.main(tmp_path / "plain")
    program.spread(tmp_path / "exchange")
    command = [NOMA, "run", str(EXAMPLES / "noma" / "optimize.noma")]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    ours = load_file(tmp_path / "exchange" / "outputs" / "p0001.safetensors")["p0001"]
    theirs = read(UpdateOutputs, tmp_path / "plain").parameters[A]
    torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=1e-6)
