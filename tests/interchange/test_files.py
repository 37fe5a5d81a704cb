"""A schema on disk: whole and as it was, or refused in one line that names the tensor."""

import hashlib
import json
import struct
from functools import reduce
from operator import getitem

import numpy as np
import pytest
import torch
import xxhash
from exchange import A, B
from safetensors.torch import load_file, save_file

from trl_prorl.errors import InputError
from trl_prorl.interchange import UpdateInputs, UpdateOutputs, files, read, write


def same(first, second):
    ours, theirs = first.tensors(), second.tensors()
    assert list(ours) == list(theirs) and first.values() == second.values()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name].nan_to_num(7.0), theirs[name].nan_to_num(7.0)), name


def test_a_schema_comes_back_as_it_was(hand_made, rows, tmp_path):
    inputs = hand_made(growth={"old_rank": 2, "new_rank": 3}, new_rows={A: torch.rand(1, 3)}, gradients={})
    inputs.reset = RESET
    outputs = UpdateOutputs(
        **{kind: getattr(inputs, kind) for kind in ("parameters", "exp_avg", "exp_avg_sq", "steps", "names")},
        update=8,
        inputs="0" * 64,
        metrics={"update_norm": 0.1},
    )
    half = hand_made()
    half.parameters[A], half.parameters[B] = half.parameters[A].bfloat16(), half.parameters[B].half()
    for data in (inputs, rows, outputs, half):
        write(data, tmp_path)
        same(read(type(data), tmp_path), data)


def test_the_hashes_are_those_of_the_page(hand_made, tmp_path):
    """Worked out from docs/interchange.md alone."""
    inputs = hand_made()
    returned = write(inputs, tmp_path)
    sidecar = json.loads((tmp_path / "inputs.json").read_text())
    entry = sidecar["tensors"][0]
    numbers = np.asarray(inputs.parameters[A], dtype="<f4").tobytes()
    assert entry["xxh3_128"] == xxhash.xxh3_128_hexdigest(f"parameters/{A}|F32|2,3|".encode() + numbers)
    told = sidecar.pop("sha256")
    text = json.dumps(sidecar, sort_keys=True, separators=(",", ":"))
    assert told == returned == hashlib.sha256(text.encode()).hexdigest()
    assert (sidecar["format"], sidecar["schema"], sidecar["version"]) == ("trl_prorl.interchange", "inputs", 1)


# ---------------------------------------------------------------------------------------------------- what is refused


def refused(folder, cls=UpdateInputs):
    with pytest.raises(InputError) as caught:
        read(cls, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edited(folder, change):
    """Change the sidecar, and give it a hash that fits, as the page says."""
    path = folder / "inputs.json"
    sidecar = json.loads(path.read_text())
    change(sidecar)
    del sidecar["sha256"]
    rest = json.dumps(sidecar, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(sidecar | {"sha256": hashlib.sha256(rest.encode()).hexdigest()}))


def test_a_flipped_bit_is_refused_with_its_tensor(hand_made, tmp_path):
    write(hand_made(), tmp_path)
    path = tmp_path / "inputs.safetensors"
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    data[8 + size + json.loads(data[8 : 8 + size])[f"exp_avg_sq/{B}"]["data_offsets"][0]] ^= 1
    path.write_bytes(data)
    assert f"tensor exp_avg_sq/{B} does not fit its hash" in refused(tmp_path)


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_file_that_is_cut_is_refused(hand_made, tmp_path, length):
    write(hand_made(), tmp_path)
    path = tmp_path / "inputs.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert f"parameters/{A}" in refused(tmp_path)


def test_a_sidecar_that_is_cut_altered_or_missing_is_refused(hand_made, tmp_path):
    write(hand_made(), tmp_path)
    path = tmp_path / "inputs.json"
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert "not a whole sidecar" in refused(tmp_path)
    path.write_text(text.replace('"lr": 0.01', '"lr": 0.02'))
    assert text != path.read_text() and "does not fit its own hash" in refused(tmp_path)
    path.unlink()
    assert "missing" in refused(tmp_path)


def test_a_later_version_is_refused_and_another_schema_too(hand_made, tmp_path):
    write(hand_made(), tmp_path)
    edited(tmp_path, lambda sidecar: sidecar.update(version=2))
    assert "version 2" in (message := refused(tmp_path)) and "update trl-prorl" in message
    edited(tmp_path, lambda sidecar: sidecar.update(version=1, schema="outputs"))
    assert "not trl_prorl.interchange inputs" in refused(tmp_path)


def test_swapped_tensors_are_refused_although_their_shapes_agree(hand_made, tmp_path):
    """In the file, and in the sidecar's mapping with the hashes moved along."""
    write(hand_made(), tmp_path)
    held = load_file(tmp_path / "inputs.safetensors")
    first, second = f"exp_avg/{A}", f"exp_avg_sq/{A}"
    save_file(held | {first: held[second], second: held[first]}, tmp_path / "inputs.safetensors")
    assert f"tensor {first} does not fit its hash" in refused(tmp_path)

    write(hand_made(), tmp_path)

    def swap(sidecar):
        one, other = (next(e for e in sidecar["tensors"] if e["name"] == name) for name in (first, second))
        for field in ("key", "xxh3_128"):
            one[field], other[field] = other[field], one[field]

    edited(tmp_path, swap)
    assert f"tensor {first} does not fit its hash" in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda tensors: tensors.insert(1, tensors[0]),
            f"tensor parameters/{A} does not belong to this schema, or stands there twice",
        ),
        (lambda tensors: tensors.pop(1), f"tensor parameters/{B} is missing"),
        (lambda tensors: tensors[-1].update(name="steps/other"), "tensor steps/other does not belong"),
    ],
)
def test_doubled_missing_and_unknown_tensors_are_refused(hand_made, tmp_path, change, said):
    write(hand_made(), tmp_path)
    edited(tmp_path, lambda sidecar: change(sidecar["tensors"]))
    assert said in refused(tmp_path)


def test_a_tensor_of_another_shape_or_dtype_than_the_sidecar_s_is_refused(hand_made, tmp_path):
    write(hand_made(), tmp_path)
    held = load_file(tmp_path / "inputs.safetensors")
    name = f"parameters/{B}"
    save_file(held | {name: held[name].T.contiguous()}, tmp_path / "inputs.safetensors")
    assert f"tensor {name} is F32 [2, 4] in the file and F32 [4, 2] in the sidecar" in refused(tmp_path)
    save_file(held | {name: held[name].double()}, tmp_path / "inputs.safetensors")
    assert f"tensor {name} is F64" in refused(tmp_path)
    save_file(held | {"stray": torch.ones(1)}, tmp_path / "inputs.safetensors")
    assert "tensor stray is in the file and not in the sidecar" in refused(tmp_path)


RESET = {"mode": "soft", "alpha": 0.25, "restarts_schedule": False, "rewarmup_steps": 3}


def put(*path, value):
    """A change of a sidecar; the key `"…"` stands for the first entry of a list."""
    *way, last = (0 if key == "…" else key for key in path)
    return lambda sidecar: reduce(getitem, way, sidecar).__setitem__(last, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (put("version", value=True), "version is True"),
        (put("form", value="torch"), "form is 'torch'; plain is needed"),
        (put("values", value=[]), "values is a list; an object is needed"),
        (put("values", "names", value=None), "names is None"),
        (put("values", "groups", "…", value={"lr": 1.0}), "groups[0] has no 'beta1'"),
        (put("values", "groups", "…", "lr", value="0.1"), "groups[0].lr is '0.1'"),
        (put("values", "groups", "…", "lr", value=float("nan")), "groups[0].lr is nan"),
        (put("values", "growth", value={"old_rank": 2}), "growth has no 'new_rank'"),
        (put("values", "growth", value={"old_rank": 2, "new_rank": 2.5}), "growth.new_rank is 2.5"),
        (put("values", "reset", value={"mode": "hard"}), "reset has no 'alpha'"),
        (put("values", "reset", value=RESET | {"mode": "soft", "alpha": 0.0}), "alpha=0.0"),
        (put("values", "reset", value=RESET | {"mode": "half"}), "'half'"),
        (put("values", "update", value=True), "update is True"),
        (put("tensors", value=None), "tensors is None"),
        (put("tensors", "…", value={}), "tensors[0] has no 'name'"),
        (put("tensors", "…", "shape", value=[2.0, 3]), "tensors[0].shape[0] is 2.0"),
        (put("tensors", "…", "file", value="../x.safetensors"), f"parameters/{A} is in ../x.safetensors"),
        (put("tensors", "…", "sha256", value="0"), f"parameters/{A} has not one hash"),
        (None, "scalars[0] is no key of the schema"),
    ],
)
def test_a_sidecar_of_another_structure_is_refused_although_its_hash_fits(hand_made, tmp_path, change, named):
    """As an engine with an error would write it."""
    write(hand_made(), tmp_path)
    if change is None:
        stray = {"name": "lr_1", "key": "lr_1", "file": "inputs.safetensors", "dtype": "F64", "shape": [1]}
        change = put("scalars", value=[stray | {"xxh3_128": "0"}])
    edited(tmp_path, change)
    assert named in refused(tmp_path)


def test_a_folder_in_the_place_of_a_file_and_a_file_in_that_of_a_folder_are_refused(hand_made, tmp_path):
    (tmp_path / "one" / "inputs.json").mkdir(parents=True)
    (tmp_path / "two").write_text("")
    for name in ("one", "two"):
        assert "cannot be read" in refused(tmp_path / name)


def test_a_name_that_stands_twice_and_a_dtype_without_a_name_are_not_written(hand_made, tmp_path):
    twice = hand_made()
    twice.names = [A, A]
    with pytest.raises(InputError, match=f"names lists {A} twice".replace(".", r"\.")):
        write(twice, tmp_path)
    odd = hand_made()
    odd.exp_avg[B] = odd.exp_avg[B].to(torch.complex64)
    with pytest.raises(InputError, match=f"tensor exp_avg/{B} is torch.complex64".replace(".", r"\.")):
        write(odd, tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda inputs: inputs.gradients.update({A: torch.ones(3, 3)}), f"gradients/{A}"),
        (lambda inputs: inputs.exp_avg.update({B: torch.ones(2, 4)}), f"exp_avg/{B}"),
        (lambda inputs: inputs.steps.update({A: torch.tensor(3.0)}), f"steps/{A}"),
        (lambda inputs: inputs.new_rows.update({A: torch.ones(1, 3)}), f"new_rows/{A}"),
        (lambda inputs: setattr(inputs, "growth", {"old_rank": 2, "new_rank": 3}), f"gradients/{A}"),
        (lambda inputs: setattr(inputs, "grad_norm", float("nan")), "grad_norm"),
    ],
)
def test_parts_that_do_not_fit_are_not_written(hand_made, tmp_path, change, named):
    inputs = hand_made()
    change(inputs)
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        write(inputs, tmp_path)
    assert not (tmp_path / "inputs.json").exists()


def test_a_write_that_fails_leaves_nothing_that_can_be_read(hand_made, tmp_path, monkeypatch):
    write(hand_made(), tmp_path)

    def full(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(OSError, match="disk full"):
        write(hand_made(seed=1), tmp_path)
    assert "missing" in refused(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
