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
from any_content import QUICK, changed, places
from exchange import A, B
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from trl_prorl.errors import InputError
from trl_prorl.interchange import UpdateInputs, UpdateOutputs, read, write
from trl_prorl.interchange import update_folder as files


def same(first, second):
    ours = first.tensors()
    theirs = second.tensors()
    assert list(ours) == list(theirs)
    assert first.values() == second.values()
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
    half.parameters[A] = half.parameters[A].bfloat16()
    half.parameters[B] = half.parameters[B].half()
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


def of_bytes(change, file="safetensors"):
    """A damage to the bytes of a file."""

    def damage(path):
        path = path / f"inputs.{file}"
        path.write_bytes(change(path.read_bytes()))

    return damage


def of_tensors(change):
    """A damage: other tensors, in a file that is whole."""

    def damage(path):
        held = load_file(path / "inputs.safetensors")
        save_file(held | change(held), path / "inputs.safetensors")

    return damage


def of_sidecar(change):
    """A damage to the sidecar, which gets a hash that fits, as the page says and as an engine with an error would."""

    def edited(whole):
        sidecar = json.loads(whole)
        change(sidecar)
        del sidecar["sha256"]
        rest = json.dumps(sidecar, sort_keys=True, separators=(",", ":"))
        return json.dumps(sidecar | {"sha256": hashlib.sha256(rest.encode()).hexdigest()}).encode()

    return of_bytes(edited, "json")


def flipped(whole):
    """A bit of the first number of a tensor."""
    data = bytearray(whole)
    (size,) = struct.unpack("<Q", data[:8])
    data[8 + size + json.loads(data[8 : 8 + size])[f"exp_avg_sq/{B}"]["data_offsets"][0]] ^= 1
    return data


FIRST = f"exp_avg/{A}"
SECOND = f"exp_avg_sq/{A}"
TURNED = f"parameters/{B}"


def swapped(sidecar):
    """The mapping of two tensors whose shapes agree, with the hashes moved along."""
    one, other = (next(e for e in sidecar["tensors"] if e["name"] == name) for name in (FIRST, SECOND))
    for field in ("key", "xxh3_128"):
        one[field], other[field] = other[field], one[field]


def put(*path, value):
    """A change of a sidecar; the key `"…"` stands for the first entry of a list."""
    *way, last = (0 if key == "…" else key for key in path)
    return lambda sidecar: reduce(getitem, way, sidecar).__setitem__(last, value)


RESET = {"mode": "soft", "alpha": 0.25, "restarts_schedule": False, "rewarmup_steps": 3}
SIDECARS = [
    (put("version", value=2), "'inputs', 2]"),
    (put("schema", value="outputs"), "inputs"),
    (swapped, f"tensor {FIRST} does not match its xxh3_128"),
    (lambda sidecar: sidecar["tensors"].insert(1, sidecar["tensors"][0]), f"tensor parameters/{A}"),
    (lambda sidecar: sidecar["tensors"].pop(1), f"tensor parameters/{B} is missing"),
    (lambda sidecar: sidecar["tensors"][-1].update(name="steps/other"), "tensor steps/other"),
    (put("values", value=[]), "values is []"),
    (put("values", "groups", "…", value={"lr": 1.0}), "groups[0] has no 'beta1'"),
    (put("values", "groups", "…", "lr", value=float("nan")), "groups[0].lr is nan"),
    (put("values", "growth", value={"old_rank": 2, "new_rank": 2.5}), "growth.new_rank is 2.5"),
    (put("values", "update", value=True), "update is True"),
    (put("values", "update", value=0), "update is 0"),
    (put("tensors", "…", "file", value="../x.safetensors"), "../x.safetensors"),
]
OTHERS = [
    (of_bytes(flipped), f"tensor exp_avg_sq/{B} does not match its xxh3_128"),
    (of_bytes(lambda whole: whole[:40]), f"parameters/{A}"),
    (of_bytes(lambda whole: whole[:-1]), f"parameters/{A}"),
    (of_bytes(lambda whole: whole[: len(whole) // 2], "json"), "sidecar"),
    (of_bytes(lambda whole: whole.replace(b'"lr": 0.01', b'"lr": 0.02'), "json"), "does not match its own hash"),
    (lambda folder: (folder / "inputs.json").unlink(), "missing"),
    (
        of_tensors(lambda held: {FIRST: held[SECOND], SECOND: held[FIRST]}),
        f"tensor {FIRST} does not match its xxh3_128",
    ),
    (of_tensors(lambda held: {TURNED: held[TURNED].T.contiguous()}), TURNED),
    (of_tensors(lambda held: {TURNED: held[TURNED].double()}), f"tensor {TURNED} is"),
    (of_tensors(lambda held: {"stray": torch.ones(1)}), "tensor stray"),
]


@pytest.mark.parametrize(("damage", "said"), [*((of_sidecar(change), said) for change, said in SIDECARS), *OTHERS])
def test_what_is_not_whole_is_refused_by_its_name(hand_made, tmp_path, damage, said):
    write(hand_made(), tmp_path)
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    damage(tmp_path)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] != before
    assert said in refused(tmp_path)


def test_a_dtype_without_a_name_and_a_value_that_is_no_number_are_not_written(hand_made, tmp_path):
    odd = hand_made()
    odd.exp_avg[B] = odd.exp_avg[B].to(torch.complex64)
    for inputs, named in ((odd, f"exp_avg/{B}"), (hand_made(grad_norm=float("nan")), "grad_norm")):
        with pytest.raises(InputError, match=named):
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


NUMBERS = st.one_of(st.integers(-3, 9), st.floats(), st.sampled_from([10**400, -(10**400), 2**63, 1e308, 2**53 + 1]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4), st.just("x" * 3000), st.just(...))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@pytest.fixture
def exchange(hand_made, rows, tmp_path):
    """A folder for each schema, whole."""
    inputs = hand_made(reset={"mode": "soft", "alpha": 0.25, "restarts_schedule": False, "rewarmup_steps": 3})
    state = {kind: getattr(inputs, kind) for kind in ("parameters", "exp_avg", "exp_avg_sq", "steps", "names")}
    outputs = UpdateOutputs(**state, update=8, inputs="0" * 64, metrics={"update_norm": 0.1})
    folders = {}
    for data in (rows, inputs, outputs):
        folders[type(data)] = tmp_path / data.schema
        write(data, folders[type(data)])
    return folders


def without_holes(value):
    if isinstance(value, dict):
        return {key: without_holes(one) for key, one in value.items()}
    return [without_holes(one) for one in value] if isinstance(value, list) else None if value is ... else value


@given(st.data())
@settings(max_examples=100, **QUICK)
def test_no_sidecar_ends_in_a_traceback(exchange, data):
    """Of the changed ones, whose hash belongs to them where they have one; the line is short."""
    cls, folder = data.draw(st.sampled_from(sorted(exchange.items(), key=str)))
    path = folder / f"{cls.schema}.json"
    before = path.read_text()
    whole = json.loads(before)
    at = data.draw(st.sampled_from(sorted(places(whole), key=repr)))
    value = data.draw(VALUES)
    content = changed(whole, at, value if value is ... and at else without_holes(value))
    try:
        content |= {"sha256": files.sidecar_hash(content)}
    except (AttributeError, TypeError, ValueError, RecursionError):  # it is no object, or no JSON
        pass
    path.write_text(json.dumps(content))
    try:
        read(cls, folder)
    except InputError as error:
        assert len(str(error)) <= 500
        assert "\n" not in str(error)
    finally:
        path.write_text(before)
