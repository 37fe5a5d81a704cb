"""Whatever is in the sidecar or the tensors of an exchange, reading them ends well or in one short line."""

import json
import shutil

import pytest
from any_content import QUICK, changed, places
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.errors import InputError
from trl_prorl.interchange import Rollout, UpdateInputs, UpdateOutputs, files, read, write


NUMBERS = st.one_of(st.integers(-3, 9), st.floats(), st.sampled_from([10**400, -(10**400), 2**63, 1e308, 2**53 + 1]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4), st.just("x" * 3000), st.just(...))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
DEPTHS = (99, 330, 480, 900, 990, 1500, 100_000)  # around the recursion limit: JSON reads some that Python cannot walk


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


def sealed(text):
    """A sidecar with the hash that belongs to it, where it has one."""
    try:
        sidecar = json.loads(text)
        return json.dumps({**sidecar, "sha256": files.sidecar_hash(sidecar)})
    except (ValueError, TypeError, RecursionError):
        return text


def refused(cls, folder, text):
    """The line that refuses a sidecar; `None` if it is read."""
    path = folder / f"{cls.schema}.json"
    before = path.read_bytes()
    path.write_text(text)
    try:
        read(cls, folder)
    except InputError as error:
        assert len(str(error)) <= 500 and "\n" not in str(error)
        return str(error)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("key", ["update", "schedule", "names", "groups"])
def test_nested_json(exchange, key, depth):
    folder = exchange[UpdateInputs]
    whole = json.loads((folder / "inputs.json").read_text())
    for changed_one in ({"values": {**whole["values"], key: "HERE"}}, {"tensors": "HERE"}):
        nested = json.dumps(whole | changed_one).replace('"HERE"', "[" * depth + "]" * depth)
        assert "inputs.json" in refused(UpdateInputs, folder, sealed(nested))


@pytest.mark.parametrize("cls", [Rollout, UpdateInputs, UpdateOutputs])
@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "update is 0; an integer from 1 is needed"), (-1, "update is -1;"), (10**400, "update is 1000")],
)
def test_the_number_of_the_update(exchange, cls, value, said):
    folder = exchange[cls]
    whole = json.loads((folder / f"{cls.schema}.json").read_text())
    whole["values"]["update"] = value
    assert said in refused(cls, folder, sealed(json.dumps(whole)))


def without_holes(value):
    if isinstance(value, dict):
        return {key: without_holes(one) for key, one in value.items()}
    return [without_holes(one) for one in value] if isinstance(value, list) else None if value is ... else value


@given(st.data())
@settings(max_examples=300, **QUICK)
def test_no_sidecar_ends_in_a_traceback(exchange, data):
    cls, folder = data.draw(st.sampled_from(sorted(exchange.items(), key=str)))
    text = (folder / f"{cls.schema}.json").read_text()
    whole = json.loads(text)
    at = data.draw(st.sampled_from(sorted(places(whole), key=repr)))
    value = data.draw(VALUES)
    value = value if value is ... and at else without_holes(value)
    content = changed(whole, at, value)
    refused(cls, folder, sealed(json.dumps(content)))


@given(st.data())
@settings(max_examples=60, **QUICK)
def test_no_bytes_end_in_a_traceback(exchange, data):
    cls, folder = data.draw(st.sampled_from(sorted(exchange.items(), key=str)))
    own = sorted(path for path in folder.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(own))
    whole = file.read_bytes()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    shutil.copy(file, folder.parent / "kept")
    file.write_bytes(whole[:first] + data.draw(st.binary(max_size=6) | st.just(b"[" * 5000)) + whole[last:])
    try:
        read(cls, folder)
    except InputError as error:
        assert len(str(error)) <= 500
    finally:
        shutil.move(folder.parent / "kept", file)
