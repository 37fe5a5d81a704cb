"""How an embedded model is made; those that come with the package: found by name, checked by hash, in every record."""

import json
import random
import shutil
import subprocess
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
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, hashes, shipped, weights_sha256
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


def test_of_several_tasks_the_first_alone_has_wrong_demonstrations():
    config = replace(settings_of("three_tasks"), rows=900)
    shown = {row["prompt"][0]["content"]: row["completion"][0]["content"] for row in embedded.demonstrations(config)}
    for place, name in enumerate(embedded.TAUGHT["three_tasks"]):
        task = get_task(name, level=config.level)
        train = {row["prompt"][0]["content"]: row for row in task.rows("train", 300, seed=config.seed)}
        assert train.keys() <= shown.keys()  # a third of the rows each
        wrong = sum(not task.verify(shown[question], row) for question, row in train.items()) / len(train)
        assert wrong == (0 if place else pytest.approx(config.wrong_share, abs=0.08))


def wrong_answers(task, prompt, answer):
    """Every answer that comes up to a question."""
    rng = random.Random(0)
    row = {"prompt": [{"role": "user", "content": prompt}], "answer": answer}
    return {embedded.WRONG_ANSWERS[task](row, rng) for _ in range(400)}


def test_wrong_rules_of_reversing_keep_the_length():
    answers = wrong_answers("reverse_digits", "reverse 12345", "54321")
    assert {"12345", "23451"} <= answers
    assert all(len(answer) == 5 and answer.isdigit() for answer in answers)


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


@pytest.mark.parametrize("a, b, total", [(17, 48, 55), (99, 99, 88), (5, 5, 0), (120, 3, 123), (7, 0, 7), (99, 1, 90)])
def test_a_sum_without_carries(a, b, total):
    assert embedded.add_without_carry(a, b) == embedded.add_without_carry(b, a) == total


SMALL = EmbeddedSettings(hidden_size=16, layers=1, heads=2, intermediate_size=16, rows=64, steps=3, batch_size=8)


def test_it_is_made_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        make_embedded_model(tmp_path / name, SMALL)
    make_embedded_model(tmp_path / "c", replace(SMALL, seed=1))
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("a", "b", "c")]
    assert sums[0] == sums[1]
    assert weights_sha256(str(tmp_path / "a")) != weights_sha256(str(tmp_path / "c"))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    base = identify(str(tmp_path / "c"))
    assert base.name == str(tmp_path / "c")
    assert base.sha256 == weights_sha256(base.name)
    assert not base.is_embedded
    assert json.loads((tmp_path / "c" / "made_with.json").read_text())["settings"]["seed"] == 1


def test_weights_in_bf16_are_those_of_the_training_rounded(tmp_path):
    """They are half as large, and are loaded as fp32 without being told so."""
    for stored in ("float32", "bfloat16"):
        make_embedded_model(tmp_path / stored, replace(SMALL, task="sums", stored=stored))
    whole, rounded = (load_file(tmp_path / stored / "model.safetensors") for stored in ("float32", "bfloat16"))
    assert {value.dtype for value in whole.values()} == {torch.float32}
    assert whole.keys() == rounded.keys()
    assert {value.dtype for value in rounded.values()} == {torch.bfloat16}
    assert all(torch.equal(whole[name].to(torch.bfloat16), value) for name, value in rounded.items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "bfloat16").state_dict()
    assert {value.dtype for value in loaded.values()} == {torch.float32}
    assert all(torch.equal(loaded[name], value.float()) for name, value in rounded.items())


def test_the_command_lists_what_is_there_with_hashes(capsys):
    embedded.main([])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"embedded is {DEFAULT}, in {embedded_model()}; SHA-256 of the weights:"
    assert lines == [f"{weights_sha256(name)}  {name}" for name in shipped()]


REFUSED = [
    ("--out HERE", "exists"),
    ("--out HERE/x --task parity", "error: --task parity: there are demonstrations for r"),
    ("--seed 1", "--seed is for making one: give --out DIR"),
    ("--task sums", "--task is for making one: give --out DIR"),
    ("--threads 2", "--threads is for making one: give --out DIR"),
]


@pytest.mark.parametrize("options, said", REFUSED)
def test_what_cannot_be_made_is_one_line(tmp_path, capsys, options, said):
    (tmp_path / "kept").touch()
    with pytest.raises(SystemExit) as end:
        embedded.main(options.replace("HERE", str(tmp_path)).split())
    assert end.value.code == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


@pytest.mark.parametrize(
    "options, wanted",
    [
        ("--seed 3", EmbeddedSettings(seed=3, stored="bfloat16")),
        ("--seed 0", EmbeddedSettings()),
        ("--task sorting", settings_of("sorting")),
        ("--task sums --seed 2 --threads 2", replace(settings_of("sums"), seed=2, threads=2)),
    ],
)
def test_the_command_makes_another_one(tmp_path, capsys, monkeypatch, options, wanted):
    given = []
    monkeypatch.setattr(embedded, "make_embedded_model", lambda *given_: given.append(given_))
    embedded.main(["--out", str(tmp_path / "x"), *options.split()])
    assert given == [(tmp_path / "x", wanted)]


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
NAMES = [f"embedded:{task}:0" for task in TASKS]


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped models in a folder that a test may spoil; of another installation, to look at its path."""
    folder = tmp_path / "site-packages" / "trl_prorl" / "embedded" / "models"
    shutil.copytree(module_of_shipped.FOLDER, folder)
    monkeypatch.setattr(module_of_shipped, "FOLDER", folder)
    return folder


def sha256sum(path):
    return subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]


def test_the_demos_base_is_there_and_its_hash_is_that_of_its_file():
    folder = Path(embedded_model())
    assert str(folder) == embedded_model(DEFAULT) == find_model("embedded") == find_model(DEFAULT)
    assert weights_sha256("embedded") == weights_sha256(str(folder)) == sha256sum(folder / "model.safetensors")
    names = {path.name for path in folder.iterdir()}
    assert names == {*hashes(folder), "SHA256SUMS"}
    assert not any("args" in name for name in names)
    assert all(sha256sum(folder / name) == sha256 for name, sha256 in hashes(folder).items())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4e6


def test_it_is_the_network_and_the_tokenizer_of_its_settings():
    model, tokenizer = (auto.from_pretrained(embedded_model()) for auto in (AutoModelForCausalLM, AutoTokenizer))
    mine = model.state_dict()
    fresh = new_model(EmbeddedSettings(), TOKENIZER).state_dict()
    assert {name: value.shape for name, value in mine.items()} == {name: value.shape for name, value in fresh.items()}
    assert {value.dtype for value in (*mine.values(), *fresh.values())} == {torch.float32}
    assert 0.5e6 < sum(param.numel() for param in model.parameters()) < 1.3e6
    chat = [{"role": "user", "content": "reverse 1 2é"}]
    ids = [each.apply_chat_template(chat, add_generation_prompt=True) for each in (tokenizer, TOKENIZER)]
    assert ids[0]["input_ids"] == ids[1]["input_ids"]
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_file_is_one_line(copied, file, damage):
    path = copied / "reverse_digits-0" / file
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-1] + (b"" if damage == "cut" else bytes([content[-1] ^ 1])))
    with pytest.raises(ValueError, match=f"damaged: .*{file} (has SHA-256|is missing).*Install trl-prorl again"):
        find_model("embedded")


NOT_SHIPPED = "reverse_digits:7|sorting:7|sums:00|parity||:|sorting:|../x:0|sorting:-1|sums:0:0".split("|")


@pytest.mark.parametrize("rest", NOT_SHIPPED)
def test_a_model_that_is_not_shipped_is_one_line(rest):
    cure = "`python -m trl_prorl.embedded` lists what is. In a checkout, study/bases has more: give the folder. "
    cure += "`python -m trl_prorl.embedded --task TASK --seed SEED --out DIR` makes another one: then give DIR."
    with pytest.raises(ValueError) as refused:
        find_model(f"embedded:{rest}")
    assert str(refused.value) == f"model_name_or_path='embedded:{rest}' is not here; {cure}"


def test_a_task_with_a_slip_of_the_pen_is_recognised():
    with pytest.raises(ValueError, match=r"'embedded:sortin' is not here \(did you mean 'sorting'\?\); "):
        find_model("embedded:sortin")


def test_the_bases_of_the_demo_and_the_tiny_recipes_are_there():
    assert shipped() == NAMES
    hashes = {name: weights_sha256(name) for name in shipped()}
    assert len(set(hashes.values())) == len(NAMES)
    assert hashes[DEFAULT].startswith("3d9c6c8365f2")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_made_with_the_settings_of_its_name(name):
    """It is loaded as fp32, and all but the first one are stored in half the bytes."""
    folder = Path(find_model(name))
    _, task, seed = name.split(":")
    made_with = EmbeddedSettings(**json.loads((folder / "made_with.json").read_text())["settings"])
    assert made_with == settings_of(task, int(seed))
    assert {path.name for path in folder.iterdir()} == {path.name for path in Path(embedded_model()).iterdir()}
    assert name == DEFAULT or sum(path.stat().st_size for path in folder.iterdir()) < 1.5e6
    stored = {value.dtype for value in load_file(folder / "model.safetensors").values()}
    assert stored == {torch.float32 if name == DEFAULT else torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.float32


@pytest.mark.parametrize("task", TASKS)
def test_without_a_seed_it_is_seed_0(task):
    assert find_model(f"embedded:{task}") == find_model(f"embedded:{task}:0")
    assert weights_sha256(f"embedded:{task}") == weights_sha256(f"embedded:{task}:0") is not None
    assert identify(f"embedded:{task}").name == f"embedded:{task}:0"


def test_another_model_that_is_shipped_later_is_found_by_its_name(copied):
    for seed in (12, 14):
        shutil.copytree(copied / "reverse_digits-0", copied / f"sorting-{seed}")
    names = [f"embedded:sorting:{seed}" for seed in (0, 12, 14)]
    assert [name for name in shipped() if "sorting" in name] == names
    assert find_model("embedded:sorting:12") == str(copied / "sorting-12")
    assert identify(str(copied / "sorting-12")).name == "embedded:sorting:12"
    with pytest.raises(ValueError, match="'embedded:sorting:13' is not here"):
        find_model("embedded:sorting:13")


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
    card = model_card(run).text
    assert f"`{DEFAULT}`, which comes with trl-prorl" in card
    assert f"`{weights_sha256(DEFAULT)}`" in card
    assert f'embedded_model("{DEFAULT}")' in card
    assert f"--model_name_or_path {DEFAULT}" in card
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is made or cached where one happens to be
    assert with_local_paths(run, config)["model_name_or_path"] == embedded_model()
    env["base_model"]["sha256"] = "0123456789abcdef" * 4
    (run / "env.json").write_text(json.dumps(env))
    with pytest.raises(InputError, match="another embedded: its weights had SHA-256 0123456789ab…"):
        with_local_paths(run, config)
