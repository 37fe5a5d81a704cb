"""A tokenizer that is not whole, or larger than its model's embedding: one line, wherever one is loaded."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from trl_prorl.errors import InputError
from trl_prorl.eval import drift, passk, preflight
from trl_prorl.upstream.vocabulary import check_tokenizer, load_tokenizer


RECIPE = str(Path(__file__).parents[3] / "recipes" / "tiny" / "variantA.yaml")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 7031645\n"


def remove(file):
    file.unlink()


def link_to_nothing(file):
    file.unlink()
    file.symlink_to("../blobs/0")


def point_elsewhere(file):
    file.write_text(POINTER)


def truncate(file):
    file.write_text(file.read_text()[:1000])


def empty(file):
    file.write_text("{}")


DAMAGES = [remove, link_to_nothing, point_elsewhere, truncate, empty]
SOME = [remove, point_elsewhere]
BY_TRL = {"lora": False, "trainer_kwargs": {"processing_class": None}}
BY_US = {"beta": 0.1, "ref_reset_every": 2, "trainer_kwargs": {"processing_class": None}}


def error_of(main, argv, capsys):
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    shown = capsys.readouterr().err.splitlines()
    (line,) = [line for line in shown if line and not line.startswith("Loading weights:")]  # a bar
    return line


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model, to damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def add_token(model):
    """The tokenizer learns one token more than the model has."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["überzählig"])
    tokenizer.save_pretrained(model)
    return str(len(tokenizer) - 1)


@pytest.mark.parametrize(
    "damage, keys", [(damage, BY_TRL) for damage in DAMAGES] + [(damage, BY_US) for damage in SOME]
)
def test_a_trainer_names_the_file_that_is_lost(make_trainer, model, damage, keys):
    damage(model / "tokenizer.json")
    with pytest.raises(InputError) as caught:
        make_trainer(model=str(model), **keys)
    line = str(caught.value)
    assert str(model) in line and "tokenizer.json" in line and "\n" not in line


@pytest.mark.parametrize("damage", SOME)
def test_a_recipe_names_the_file_that_is_lost(model, damage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    damage(model / "tokenizer.json")
    line = error_of(preflight.main, ["--config", RECIPE, "--model_name_or_path", str(model)], capsys)
    assert str(model) in line and "tokenizer.json" in line


@pytest.mark.parametrize("main", [passk.main, drift.main])
@pytest.mark.parametrize("damage", SOME)
def test_a_run_s_tokenizer_that_is_lost_is_named(run_dir, main, damage, capsys):
    damage(run_dir / "tokenizer.json")
    line = error_of(main, ["--run", str(run_dir)], capsys)
    assert str(run_dir) in line and "tokenizer.json" in line


def test_a_pointer_in_place_of_the_configuration_is_named(make_trainer, model):
    point_elsewhere(model / "config.json")
    with pytest.raises(InputError, match=r"config\.json"):
        make_trainer(model=str(model), **BY_TRL)


@pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json"])
def test_a_pointer_that_transformers_reads_or_ignores_is_named(make_trainer, model, run_dir, name, capsys):
    """The template would be every prompt; the generation's settings would be those of the configuration."""
    point_elsewhere(model / name)
    with pytest.raises(InputError, match=name):
        make_trainer(model=str(model), **BY_TRL)
    point_elsewhere(run_dir / name)
    assert name in error_of(passk.main, ["--run", str(run_dir)], capsys)


@pytest.mark.parametrize(
    "key, value", [("model_max_length", "x"), ("model_max_length", [1]), ("model_input_names", "x")]
)
def test_a_value_of_another_kind_in_a_tokenizer_is_one_line(run_dir, key, value, capsys):
    file = run_dir / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    for main in (passk.main, drift.main):
        assert str(run_dir) in error_of(main, ["--run", str(run_dir)], capsys)


@pytest.mark.parametrize("of", ["name", "object"])
def test_more_tokens_than_the_embedding_has_rows(make_trainer, model, of):
    index = add_token(model)
    given = str(model) if of == "name" else AutoModelForCausalLM.from_pretrained(model)
    with pytest.raises(InputError) as caught:
        make_trainer(model=given, trainer_kwargs={"processing_class": AutoTokenizer.from_pretrained(model)})
    line = str(caught.value)
    assert "überzählig" in line and index in line and "resize_token_embeddings" in line and "\n" not in line


def test_a_recipe_with_more_tokens_than_the_embedding_has_rows(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    index = add_token(model)
    line = error_of(preflight.main, ["--config", RECIPE, "--model_name_or_path", str(model)], capsys)
    assert "überzählig" in line and index in line


def test_a_run_with_more_tokens_than_the_embedding_has_rows(run_dir, capsys):
    index = add_token(run_dir)
    line = error_of(passk.main, ["--run", str(run_dir), *"--prompts 2 --n 2 --k 1".split()], capsys)
    assert "überzählig" in line and index in line


def test_a_special_token_that_never_occurs_may_exceed_the_embedding(model):
    """Gemma 3's smallest models have such an image token; a chat template's token is another matter."""
    tokenizer = load_tokenizer(model)
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    check_tokenizer(tokenizer, rows)
    tokenizer.chat_template += "<image>"
    with pytest.raises(InputError, match="<image>"):
        check_tokenizer(tokenizer, rows)


@pytest.mark.parametrize("of", ["name", "object"])
def test_an_encoder_decoder_is_refused(make_trainer, model, of):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 300}
    given = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    if of == "name":
        given.save_pretrained(model)
        given = str(model)
    with pytest.raises(ValueError, match=r"encoder-decoder.*'t5'.*causal") as caught:
        make_trainer(model=given, lora=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("named", [True, False])
def test_an_empty_evaluation_set_is_refused(make_trainer, named):
    rows = Dataset.from_dict({"prompt": []})
    given = {"eval_dataset": {"a": rows} if named else rows}
    with pytest.raises(ValueError, match="eval_dataset.* has no rows"):
        make_trainer(trainer_kwargs=given, eval_strategy="steps", eval_steps=2)


def test_an_end_of_sequence_that_a_tokenizer_appends_is_said(make_trainer, model, caplog):
    """As `add_eos_token` does; not if the prompt itself ends with it."""
    content = json.loads((model / "tokenizer.json").read_text())
    end = AutoTokenizer.from_pretrained(model).eos_token_id
    token = {"id": "<|end|>", "ids": [end], "tokens": ["<|end|>"]}
    appended = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|end|>", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": appended,
        "pair": appended,
        "special_tokens": {"<|end|>": token},
    }
    plain = AutoTokenizer.from_pretrained(model)
    (model / "tokenizer.json").write_text(json.dumps(content | {"post_processor": template}))
    appending = AutoTokenizer.from_pretrained(model)
    texts = Dataset.from_dict({"prompt": ["say 5"] * 16})
    ending = Dataset.from_dict({"prompt": ["say 5<|end|>"] * 16})
    for tokenizer, rows, times in ((appending, texts, 1), (plain, texts, 0), (plain, ending, 0)):
        caplog.clear()
        make_trainer(trainer_kwargs={"processing_class": tokenizer, "train_dataset": rows})
        assert len([line for line in caplog.messages if "'<|end|>'" in line]) == times
