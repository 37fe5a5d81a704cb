"""A model by its name, from Python as in a recipe: what it stands for, and one line if it is not there."""

import json
import shutil
from pathlib import Path

import pytest
from run_record import error_lines
from transformers import AutoTokenizer

from trl_prorl import embedded_model, evaluate, train
from trl_prorl.cli.model_name import find_model
from trl_prorl.eval import passk
from trl_prorl.run.provenance import identify


NAMED = {"model": "embedded:sorting", "trainer_kwargs": {"processing_class": None}}
SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}


@pytest.mark.parametrize("lora", [True, False], ids=["LoRA", "full"])
def test_an_embedded_model_trains_from_python_with_its_tokenizer(run, make_trainer, lora):
    trainer = run(**NAMED, lora=lora, beta=0.3, **SAVED)
    own = AutoTokenizer.from_pretrained(embedded_model("embedded:sorting"))
    messages = [{"role": "user", "content": "sort 3 1 2"}]
    texts = [each.apply_chat_template(messages, tokenize=False) for each in (trainer.processing_class, own)]
    assert texts[0] == texts[1]
    assert trainer.processing_class(texts[0]).input_ids == own(texts[0]).input_ids
    out = trainer.args.output_dir
    base = json.loads(Path(out, "env.json").read_text())["base_model"]
    assert base["name"] == "embedded:sorting:0" == identify("embedded:sorting").name
    assert base["sha256"] == identify("embedded:sorting").sha256
    again = make_trainer(**NAMED, lora=lora, beta=0.3, **{**SAVED, "max_steps": 4}, output_dir=out)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
    rows = trainer.train_dataset.select([0, 1])
    result = evaluate(again, rows, lambda completion, row: True, n=1, k=[1], greedy=False)  # in full it loads the base
    assert result["step"] == 4


REMOTE_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM

class RemoteConfig(Qwen2Config):
    model_type = "remote"

class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""


def test_a_model_with_its_own_code_is_trained_if_it_is_trusted_and_not_evaluated(tiny_model, tmp_path, capsys):
    model = tmp_path / "remote"
    shutil.copytree(tiny_model, model)
    (model / "remote.py").write_text(REMOTE_CODE)
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"}
    config["model_type"] = "remote"
    (model / "config.json").write_text(json.dumps(config))
    keys = ["--model_name_or_path", str(model), "--max_steps", "1"]
    keys += ["--train_rows", "64", "--max_completion_length", "4", "--use_cpu", "true", "--bf16", "false"]
    recipe = Path(__file__).parents[2] / "recipes" / "tiny" / "plain.yaml"
    train.main(recipe, [*keys, "--trust_remote_code", "true", "--output_dir", str(tmp_path / "trusted")])
    assert (tmp_path / "trusted" / "adapter_model.safetensors").is_file()
    assert passk.main(["--run", str(tmp_path / "trusted"), "--prompts", "2", "--n", "1", "--k", "1"]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert "Such a model can be trained, and not evaluated" in line
    with pytest.raises(SystemExit):
        train.main(recipe, [*keys, "--output_dir", str(tmp_path / "not")])
    assert "trust_remote_code" in capsys.readouterr().err


def test_a_folder_of_an_adapter_is_refused(make_trainer, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="^model='.*adapter"):
        make_trainer(model=str(tmp_path))


@pytest.mark.parametrize("subfolder", [None, "inner"])
def test_an_adapter_on_the_hub_is_refused_although_it_has_a_config(
    online, make_trainer, tiny_model, tmp_path, subfolder
):
    """transformers would load it together with its base, and a new adapter would take its place."""
    inside = "" if subfolder is None else f"{subfolder}/"
    config = Path(tiny_model, "config.json").read_bytes()
    files = {f"{inside}config.json": config}
    beside = {} if subfolder is None else {"adapter_config.json": b"{}"}
    online.repos["who/model"] = {"files": files | beside, "commits": [], "private": False}
    adapter = {f"{inside}adapter_config.json": b"{}"}
    online.repos["who/adapter"] = {"files": files | adapter | {"config.json": config}, "commits": [], "private": False}
    online.repos["who/adapter-alone"] = {"files": adapter, "commits": [], "private": False}
    init = {"cache_dir": str(tmp_path)} | ({} if subfolder is None else {"subfolder": subfolder})
    assert find_model("who/model", init=init) == "who/model"
    for name in ("who/adapter", "who/adapter-alone"):
        with pytest.raises(ValueError, match=f"^model_name_or_path='{name}' contains an adapter") as refused:
            find_model(name, init=init)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="^model='who/adapter' contains an adapter"):
        make_trainer(model="who/adapter", model_init_kwargs=init)
