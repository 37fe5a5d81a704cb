"""The embedded models that come with the package: found by name, checked by hash, named in every record."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval.samples.local_paths import with_local_paths
from trl_prorl.embedded import shipped as embedded_base
from trl_prorl.embedded.making import EmbeddedSettings, byte_tokenizer, new_model, settings_of
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, hashes, shipped, weights_sha256
from trl_prorl.errors import InputError
from trl_prorl.hub.card import model_card
from trl_prorl.record.base_model import identify
from trl_prorl.train import find_model


ROOT = Path(__file__).parent.parent
SEEDS = {"reverse_digits": range(7), "sorting": range(7), "sums": range(7)}
TASKS = tuple(SEEDS)
NAMES = [f"embedded:{task}:{seed}" for task, seeds in SEEDS.items() for seed in seeds]


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped models in a folder that a test may spoil; of another installation, to look at its path."""
    folder = tmp_path / "site-packages" / "trl_prorl" / "embedded" / "models"
    shutil.copytree(embedded_base.FOLDER, folder)
    monkeypatch.setattr(embedded_base, "FOLDER", folder)
    return folder


def sha256sum(path):
    return subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]


def test_the_demos_base_is_there_and_its_hash_is_that_of_its_file():
    assert DEFAULT in shipped()
    folder = Path(embedded_model())
    assert str(folder) == embedded_model(DEFAULT) == find_model("embedded") == find_model(DEFAULT)
    assert weights_sha256("embedded") == weights_sha256(str(folder)) == sha256sum(folder / "model.safetensors")
    names = {path.name for path in folder.iterdir()}
    assert names == {*hashes(folder), "SHA256SUMS"} and not any("args" in name for name in names)
    assert all(sha256sum(folder / name) == sha256 for name, sha256 in hashes(folder).items())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4e6


def test_it_is_the_network_and_the_tokenizer_of_its_settings():
    folder = embedded_model()
    settings = EmbeddedSettings(**json.loads(Path(folder, "made_with.json").read_text())["settings"])
    assert settings == EmbeddedSettings()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    fresh = new_model(settings, byte_tokenizer()).state_dict()
    assert {name: (value.shape, value.dtype) for name, value in model.state_dict().items()} == {
        name: (value.shape, value.dtype) for name, value in fresh.items()
    }
    assert model.dtype == torch.float32
    chat = [{"role": "user", "content": "reverse 1 2é"}]
    ids = [each.apply_chat_template(chat, add_generation_prompt=True) for each in (tokenizer, byte_tokenizer())]
    assert ids[0]["input_ids"] == ids[1]["input_ids"] and tokenizer.padding_side == "left"


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


UNKNOWN = "reverse_digits:7|sorting:7|sums:00|parity||:|sorting:|../x:0|sorting:-1|sums:0:0".split("|")


@pytest.mark.parametrize("rest", UNKNOWN)
def test_a_model_that_is_not_shipped_is_one_line(rest):
    cure = "`python -m trl_prorl.embedded` lists what is. A checkout (`pip install -e .`) has all of the study's; "
    cure += "`python -m trl_prorl.embedded --task TASK --seed SEED --out DIR` makes another one: then give DIR."
    with pytest.raises(ValueError) as refused:
        find_model(f"embedded:{rest}")
    assert str(refused.value) == f"model_name_or_path='embedded:{rest}' is not here; {cure}"


def test_the_study_s_bases_are_there():
    assert shipped() == NAMES
    hashes = {name: weights_sha256(name) for name in shipped()}
    assert len(set(hashes.values())) == len(NAMES) and hashes[DEFAULT].startswith("3d9c6c8365f2")


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


def test_without_a_seed_it_is_seed_0():
    for task in TASKS:
        assert find_model(f"embedded:{task}") == find_model(f"embedded:{task}:0")
        assert weights_sha256(f"embedded:{task}") == weights_sha256(f"embedded:{task}:0") is not None
        assert identify(f"embedded:{task}").name == f"embedded:{task}:0"
    assert find_model("embedded:reverse_digits") == find_model("embedded")


def test_another_model_that_is_shipped_later_is_found_by_its_name(copied):
    for seed in (12, 14):
        shutil.copytree(copied / "reverse_digits-0", copied / f"sorting-{seed}")
    assert [name for name in shipped() if "sorting" in name] == [
        f"embedded:sorting:{seed}" for seed in (*range(7), 12, 14)
    ]
    assert find_model("embedded:sorting:12") == str(copied / "sorting-12")
    assert identify(str(copied / "sorting-12")).name == "embedded:sorting:12"
    with pytest.raises(ValueError, match="'embedded:sorting:13' is not here"):
        find_model("embedded:sorting:13")


def test_its_identity_does_not_depend_on_where_it_is_or_what_made_it(copied, tmp_path):
    """Another installation, and one whose making code is another."""
    sha256 = weights_sha256(DEFAULT)
    for name in ("embedded", DEFAULT, embedded_model(), "/elsewhere/trl_prorl/embedded/models/reverse_digits-0"):
        base = identify(name)
        assert (base.name, base.hub_id, base.sha256, base.is_embedded) == (DEFAULT, None, sha256, True)
    assert not identify(str(tmp_path)).is_embedded and identify(str(tmp_path)).sha256 is None


@pytest.fixture(scope="module")
def trained(forks, tmp_path_factory):
    """A run of a recipe on the embedded model, started in a folder that is not the repository."""
    out = tmp_path_factory.mktemp("elsewhere") / "run"
    small = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --train_rows 16 --disable_tqdm true"
    status, shown = forks.run(ROOT / "recipes" / "grpo_variantB.py", "--output_dir", str(out), *small.split())
    assert status == 0, shown
    return out


def test_a_run_says_which_base_and_its_hash(trained):
    env = json.loads((trained / "env.json").read_text())
    assert env["base_model"] == {"name": DEFAULT, "hub_id": None, "origin": None, "sha256": weights_sha256(DEFAULT)}
    assert yaml.safe_load((trained / "config.yaml").read_text())["model_name_or_path"] == "embedded"
    card = model_card(trained).text
    assert f"`{DEFAULT}`, which comes with trl-prorl" in card and f"`{weights_sha256(DEFAULT)}`" in card
    assert f'embedded_model("{DEFAULT}")' in card and f"--model_name_or_path {DEFAULT}" in card
    assert not list(trained.parent.glob("runs"))  # nothing is made or cached where one happens to be


def test_a_run_is_evaluated_on_the_base_it_began_from(trained, tmp_path):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert with_local_paths(trained, config)["model_name_or_path"] == embedded_model()
    other = tmp_path / "run"
    shutil.copytree(trained, other)
    env = json.loads((other / "env.json").read_text())
    env["base_model"]["sha256"] = "0123456789abcdef" * 4
    (other / "env.json").write_text(json.dumps(env))
    with pytest.raises(InputError, match="another embedded: its weights had SHA-256 0123456789ab…"):
        with_local_paths(other, config)
