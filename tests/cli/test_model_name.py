"""A model by its name, from Python as in a recipe: what it stands for, and one line if it is not there."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from trl_prorl import embedded_model, evaluate
from trl_prorl.cli.model_name import find_model
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
