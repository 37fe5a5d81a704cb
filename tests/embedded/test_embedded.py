"""How an embedded model is made; those that come with the package: found by name, checked by hash, in every record."""

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl.embedded import making as embedded
from trl_prorl.embedded import shipped as module_of_shipped
from trl_prorl.embedded.making import EmbeddedSettings, byte_tokenizer, make_embedded_model, new_model, settings_of
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, hashes, weights_sha256
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.hub.card import model_card
from trl_prorl.record.base_model import identify
from trl_prorl.tasks import get_task
from trl_prorl.train import find_model


TOKENIZER = byte_tokenizer()


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_the_tokenizer_covers_any_text(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text
    assert len(TOKENIZER) == 256 + 5


def test_the_chat_template_marks_turns_and_ends_an_answer():
    chat = [{"role": "user", "content": "reverse 12"}, {"role": "assistant", "content": "21"}]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False)
    prompt = TOKENIZER.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>reverse 12<|assistant|>21<|end|>"
    assert text.startswith(prompt)


@pytest.mark.parametrize("task", sorted(embedded.FAMILIES.keys() - embedded.TAUGHT.keys()))
def test_demonstrations_have_the_wrong_share_and_come_from_the_train_split(task):
    config = replace(settings_of(task), rows=800)
    rows = embedded.demonstrations(config)
    task = get_task(config.task, level=config.level)
    train = list(task.rows("train", config.rows, seed=config.seed))
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in train]
    answers = [row["completion"][0]["content"] for row in rows]
    wrong = sum(answer != task.gold(row) for answer, row in zip(answers, train, strict=True))
    assert wrong / len(rows) == pytest.approx(config.wrong_share, abs=0.06)
    # Those that are wrong by a rule are nearly all wrong.
    assert sum(not task.verify(answer, row) for answer, row in zip(answers, train, strict=True)) > 0.85 * wrong


def wrong_answers(task, prompt, answer):
    """Every answer that comes up to a question."""
    rng = random.Random(0)
    row = {"prompt": [{"role": "user", "content": prompt}], "answer": answer}
    return {embedded.WRONG_ANSWERS[task](row, rng) for _ in range(400)}


def test_wrong_rules_of_sorting_by_hand():
    assert wrong_answers("sorting", "sort 7 3 9 1", "1 3 7 9") == {
        "7 3 9 1",  # copied
        "9 7 3 1",  # descending
        *("3 7 9", "1 7 9", "1 3 9", "1 3 7"),  # one left out
        "3 7 9 1",  # the first half alone
    }


def test_wrong_rules_of_sums_by_hand():
    assert wrong_answers("sums", "add 17 48 5", "70") == {
        "17+48=55 55+5=50 #### 50",  # no carries
        *(f"#### {guess}" for guess in (60, 68, 69, 71, 72, 80)),  # no working
        "17+48=65 65+5=70",  # no mark
        *("48+5=53 #### 53", "17+5=22 #### 22", "17+48=65 #### 65"),  # one left out
    }
    assert "#### 40" in wrong_answers("sums", "add 2 40", "42")
    assert "#### 0" in wrong_answers("sums", "add 1 1", "2")


@pytest.mark.parametrize("a, b, total", [(17, 48, 55), (99, 99, 88), (5, 5, 0), (99, 1, 90)])
def test_a_sum_without_carries(a, b, total):
    assert embedded.add_without_carry(a, b) == embedded.add_without_carry(b, a) == total


SMALL = EmbeddedSettings(
    hidden_size=16, layers=1, heads=2, intermediate_size=16, rows=64, steps=3, batch_size=8, task="sums"
)


def test_it_is_made_the_same_every_time_and_stored_in_bf16_where_asked(tmp_path):
    others = {"a": SMALL, "b": SMALL, "c": replace(SMALL, seed=1), "bf16": replace(SMALL, stored="bfloat16")}
    for name, made in others.items():
        make_embedded_model(tmp_path / name, made)
    sums = {name: weights_sha256(str(tmp_path / name)) for name in others}
    assert sums["a"] == sums["b"]
    assert len({*sums.values()}) == 3
    assert not identify(str(tmp_path / "c")).is_embedded
    whole, rounded = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "bf16"))
    assert all(torch.equal(value.to(torch.bfloat16), rounded[name]) for name, value in whole.items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16").state_dict()
    assert all(torch.equal(loaded[name], value.float()) for name, value in rounded.items())


def test_the_command_makes_another_one_and_none_without_a_place_for_it(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(embedded, "make_embedded_model", lambda *arguments: given.append(arguments))
    embedded.main(["--out", str(tmp_path / "x"), *"--task sums --seed 2 --threads 2".split()])
    assert given == [(tmp_path / "x", replace(settings_of("sums"), seed=2, threads=2))]
    for refused in ("--seed 1", f"--out {tmp_path / 'x'} --task parity"):
        with pytest.raises(SystemExit):
            embedded.main(refused.split())
    assert len(given) == 1


@pytest.mark.slow
def test_the_demos_base_is_what_its_command_makes(tmp_path):
    """Another kind of CPU rounds differently and makes other weights; those it makes again, bit for bit."""
    made_with = json.loads(Path(embedded_model(), "made_with.json").read_text())
    make_embedded_model(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "made_with.json").read_text())
    if any(EmbeddedSettings(**each.pop("settings")) != EmbeddedSettings() for each in (made_with, again)):
        pytest.fail("made with other settings")
    if again != made_with:
        pytest.skip("made with other versions")
    made = weights_sha256(str(tmp_path / "again"))
    if made != weights_sha256(DEFAULT):
        make_embedded_model(tmp_path / "and again")
        assert weights_sha256(str(tmp_path / "and again")) == made


ROOT = Path(__file__).parents[2]
TASKS = ("reverse_digits", "sorting")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped models in a folder that a test may spoil; of another installation, to look at its path."""
    folder = tmp_path / "site-packages" / "trl_prorl" / "embedded" / "models"
    shutil.copytree(module_of_shipped.FOLDER, folder)
    monkeypatch.setattr(module_of_shipped, "FOLDER", folder)
    return folder


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_file_is_refused(copied, damage):
    path = copied / "reverse_digits-0" / "config.json"
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-1] + (b"" if damage == "cut" else bytes([content[-1] ^ 1])))
    with pytest.raises(ValueError, match="damaged: .*config.json"):
        find_model("embedded")


@pytest.mark.parametrize("task", TASKS)
def test_each_is_what_its_settings_make_and_its_hash_that_of_its_file(task):
    """It is loaded as fp32, and all but the first one are stored in half the bytes."""
    name = f"embedded:{task}:0"
    folder = Path(find_model(name))
    assert find_model(f"embedded:{task}") == str(folder)
    made_with = EmbeddedSettings(**json.loads((folder / "made_with.json").read_text())["settings"])
    assert made_with == settings_of(task, 0)
    for file, sha256 in hashes(folder).items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256
    assert weights_sha256(name) == hashes(folder)["model.safetensors"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    fresh = new_model(made_with, TOKENIZER).state_dict()
    assert {key: value.shape for key, value in model.state_dict().items()} == {k: v.shape for k, v in fresh.items()}
    chat = [{"role": "user", "content": "reverse 1 2é"}]
    ids = [each.apply_chat_template(chat)["input_ids"] for each in (AutoTokenizer.from_pretrained(folder), TOKENIZER)]
    assert ids[0] == ids[1]


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
        assert (base.name, base.hub_id, base.sha256, base.is_embedded) == (DEFAULT, None, sha256, True)
    assert not identify(str(tmp_path)).is_embedded
    assert identify(str(tmp_path)).sha256 is None


def test_a_run_says_which_base_and_its_hash_and_is_evaluated_on_it(forks, tmp_path):
    """Of a recipe on the embedded model, started in a folder that is not the repository."""
    run = tmp_path / "run"
    small = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --train_rows 16 --disable_tqdm true"
    status, shown = forks.run(ROOT / "recipes" / "grpo_variantB.py", "--output_dir", run, *small.split(), cwd=tmp_path)
    assert status == 0, shown
    env = json.loads((run / "env.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert env["base_model"] == {"name": DEFAULT, "hub_id": None, "origin": None, "sha256": weights_sha256(DEFAULT)}
    assert config["model_name_or_path"] == "embedded"
    assert f'embedded_model("{DEFAULT}")' in model_card(run).text
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is made or cached where one happens to be
    assert with_local_paths(run, config)["model_name_or_path"] == embedded_model()
    env["base_model"]["sha256"] = "0123456789abcdef" * 4
    (run / "env.json").write_text(json.dumps(env))
    with pytest.raises(InputError, match="SHA-256 0123456789ab"):
        with_local_paths(run, config)
