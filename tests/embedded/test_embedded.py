"""The embedded models: what they are, found by name, checked by hash, in every record; and how one is made."""

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl.embedded import shipped as module_of_shipped
from trl_prorl.embedded.shipped import (
    DEFAULT,
    byte_tokenizer,
    embedded_model,
    hashes,
    is_embedded,
    weights_sha256,
)
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.models import with_base_model
from trl_prorl.hub.card import model_card
from trl_prorl.run.provenance import identify
from trl_prorl.tasks import get_task
from trl_prorl.train import find_model


ROOT = Path(__file__).parents[2]
TOKENIZER = byte_tokenizer()


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_the_tokenizer_covers_any_text(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text
    assert len(TOKENIZER) == 256 + 5


def test_one_is_made_the_same_every_time_and_stored_in_bf16_where_asked(tmp_path):
    spec = importlib.util.spec_from_file_location("embedded_bases", ROOT / "scripts" / "embedded_bases.py")
    making = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(making)
    small = {"task": "sums", "rows": 64, "steps": 3, "batch_size": 8, "hidden_size": 16, "layers": 1, "heads": 2}
    for name, rest in {"a": {}, "b": {}, "c": {"seed": 1}, "bf16": {"stored": "bfloat16"}}.items():
        making.make_embedded_model(tmp_path / name, making.EmbeddedSettings(**small, **rest))
    sums = {name: weights_sha256(str(tmp_path / name)) for name in ("a", "b", "c")}
    assert sums["a"] == sums["b"] != sums["c"]
    assert not is_embedded(identify(str(tmp_path / "c")).name)
    whole, rounded = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "bf16"))
    assert all(torch.equal(value.to(torch.bfloat16), rounded[name]) for name, value in whole.items())


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped models in a folder that a test may spoil; of another installation, to look at its path."""
    folder = tmp_path / "site-packages" / "trl_prorl" / "embedded" / "models"
    shutil.copytree(module_of_shipped.FOLDER, folder)
    monkeypatch.setattr(module_of_shipped, "FOLDER", folder)
    return folder


# Of the first 100 test prompts, how many greedy answers are right.
SOLVED = {"reverse_digits": 67, "sorting": 55}


@pytest.mark.parametrize("task", SOLVED)
def test_each_has_the_hashes_it_says_and_solves_as_much_as_ever(task):
    """It is loaded as fp32, and all but the first one are stored in half the bytes."""
    name = f"embedded:{task}:0"
    folder = Path(find_model(name))
    assert find_model(f"embedded:{task}") == str(folder)
    for file, sha256 in hashes(folder).items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256
    assert weights_sha256(name) == hashes(folder)["model.safetensors"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    problems = get_task(task, level=3)
    rows = list(problems.rows("test", 100))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = tokenizer.apply_chat_template(
        [row["prompt"] for row in rows],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    answers = model.generate(**prompts, max_new_tokens=24, do_sample=False)[:, prompts["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    solved = sum(map(problems.verify, texts, rows))
    assert abs(solved - SOLVED[task]) <= 2  # another CPU rounds otherwise


@pytest.mark.parametrize("rest", ["reverse_digits:7", "parity", "", ":", "../x:0", "sorting:-1", "sums:0:0"])
def test_a_model_that_is_not_shipped_is_refused(rest):
    with pytest.raises(ValueError, match=f"model_name_or_path='embedded:{rest}'"):
        find_model(f"embedded:{rest}")


def test_its_identity_does_not_depend_on_where_it_is_or_what_made_it(copied, tmp_path):
    """Another installation, and one whose making code is another."""
    sha256 = weights_sha256(DEFAULT)
    other = str(shutil.copytree(embedded_model(), tmp_path / "other"))
    for name in ("embedded", DEFAULT, embedded_model(), other):
        base = identify(name)
        assert (base.name, base.hub_id, base.sha256) == (DEFAULT, None, sha256)
    assert identify(str(tmp_path)).sha256 is None


def test_a_run_says_which_base_and_its_hash_and_is_evaluated_on_it(forks, tmp_path):
    """Of a recipe on the embedded model, started in a folder that is not the repository."""
    run = tmp_path / "run"
    small = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --train_rows 16 --disable_tqdm true"
    status, shown = forks.run(ROOT / "recipes" / "grpo_variantB.py", "--output_dir", run, *small.split(), cwd=tmp_path)
    assert status == 0, shown
    env = json.loads((run / "env.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert env["base_model"] == {"name": DEFAULT, "hub_id": None, "commit": None, "sha256": weights_sha256(DEFAULT)}
    assert config["model_name_or_path"] == "embedded"
    assert f"`{DEFAULT}`" in model_card(run).text
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is made or cached where one happens to be
    assert with_base_model(run, config)["model_name_or_path"] == embedded_model()
    env["base_model"]["sha256"] = "0123456789abcdef" * 4
    (run / "env.json").write_text(json.dumps(env))
    with pytest.raises(InputError, match="SHA-256"):
        with_base_model(run, config)
