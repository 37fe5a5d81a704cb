"""Run folders as model cards, read back with the Hub's own client."""

import hashlib

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from run_record import write_run

from trl_prorl.hub.card import model_card, remove_secrets


SECRET = "hf_" + "S" * 34
EVALUATION = {"prompts": 4, "n": 4, "temperature": 0.7, "max_new_tokens": 1024, "seed": 5}
# pass@1 = mean(c / 4); pass@2 = mean(1 - C(4 - c, 2) / 6)
BASE = {"pass@1": 0.25, "interval@1": [0.0, 0.5], "pass@2": 0.5, "interval@2": [0.25, 0.75], "correct": [1] * 4}
TRAINED = {
    "pass@1": 0.5,
    "interval@1": [0.125, 0.875],
    "pass@2": 2 / 3,
    "interval@2": [0.5, 0.9],
    "correct": [0, 2, 2, 4],
}
PASSK = {
    "split": "test",
    **EVALUATION,
    "k": [1, 2],
    "prompt_ids": ["a", "b", "c", "d"],
    "task": "sorting",
    "level": 2,
    "base": BASE,
    "trained": TRAINED,
    "gain": {"pass@1": [0.25, -0.125, 0.625], "pass@2": [1 / 6, -0.25, 0.5]},
}


@pytest.fixture
def folder(tmp_path):
    """A function that writes a run folder: `folder(passk=..., env={...}, ...)`; `None` leaves a file out."""

    def write(events=(), passk=None, config=None, env=None, steps=7, adapter="Qwen/Qwen2.5-0.5B-Instruct", **more):
        config = {"task": "sorting", "task_level": 2, "model_name_or_path": adapter} | (config or {})
        config = {key: value for key, value in config.items() if value is not None}
        versions = {"trl-prorl": "0.1.0", "trl": "1.16.0"}
        env = {"variant": "A", "seed": 3, "git_commit": "c0ffee", "versions": versions} | (env or {})
        others = more | {"env": env, "adapter_config": {"base_model_name_or_path": adapter}, "passk": passk}
        run = write_run(tmp_path / "sorted-A", config, [{"step": n + 1} for n in range(steps)], events, **others)
        (run / "adapter_model.safetensors").write_bytes(b"weights")
        return run

    return write


def row(card, first):
    """The cells of the body's table row that begins so."""
    lines = [line for line in card.text.splitlines() if line.startswith(f"| {first} |")]
    assert len(lines) == 1, lines
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_scores_are_in_the_model_index_and_with_intervals_in_the_text(folder, tmp_path):
    path = tmp_path / "README.md"
    greedy = {"accuracy": 0.5, "interval": [0.0, 1.0]}
    base = {"accuracy": 0.25, "interval": [None, None]}  # too few prompts for an interval
    gain = [0.25, -0.5, 0.75]
    env = {"base_model": {"name": "Qwen/A", "hub_id": "Qwen/A"}}
    passk = PASSK | {"greedy": {"base": base, "trained": greedy, "gain": gain}}
    path.write_text(str(model_card(folder(passk=passk, env=env), repo="someone/sorted")))
    card = ModelCard.load(path)
    assert (card.data.model_name, card.data.library_name, card.data.base_model) == ("sorted", "peft", "Qwen/A")
    assert "license" not in card.data.to_dict()
    assert {"trl-prorl", "grpo", "trl", "variant-A", "lora"} <= set(card.data.tags)
    results = {result.metric_type: result for result in card.data.eval_results}
    values = {name: result.metric_value for name, result in results.items()}
    assert values == {"pass@1": 0.5, "pass@2": 2 / 3, "accuracy": 0.5}
    assert {(result.dataset_name, result.dataset_split) for result in results.values()} == {("sorting", "test")}
    assert row(card, "pass@1")[1:] == ["0.250 [0.000, 0.500]", "0.500 [0.125, 0.875]", "+0.250 [-0.125, +0.625]"]
    assert row(card, "pass@2")[3] == "+0.167 [-0.250, +0.500]"
    assert row(card, "accuracy")[1:] == ["0.250", "0.500 [0.000, 1.000]", "+0.250 [-0.500, +0.750]"]
    for setting in ("4 prompts", "4 samples", "temperature 0.7", "1024 tokens", "level 2"):
        assert setting in card.text


@pytest.mark.parametrize(
    ("saved", "changed", "has_scores"),
    [
        ({"step": 7}, {"step": 7}, True),
        ({"step": 3}, {"step": 3, "steps_on_record": 7}, True),  # the best checkpoint
        ({"step": 7}, {"step": 3}, False),
        ({"step": 7}, {"step": 7, "weights": {"adapter_model.safetensors": "of others"}}, False),
        (
            {"step": 7},
            {"step": 3, "weights": {"adapter_model.safetensors": hashlib.sha256(b"weights").hexdigest()}},
            True,
        ),
        ({}, {}, True),  # of a script with TRL's trainer
    ],
)
def test_scores_of_other_weights_are_left_out(folder, saved, changed, has_scores):
    card = model_card(folder(passk=PASSK | changed, prorl_run={"run_id": "a"} | saved))
    assert bool(card.data.eval_results) == ("\n| pass@1 |" in card.text) == has_scores


def test_secrets_are_in_no_recipe(folder):
    secrets = {"hub_token": SECRET, "model_init_kwargs": {"token": SECRET, "dtype": "float32"}, "eos_token": "<|end|>"}
    text = str(model_card(folder(config=secrets | {"run_name": f"with {SECRET} inside"})))
    assert SECRET not in text
    assert "hub_token" not in text
    assert "eos_token: <|end|>" in text
    harmless = {"max_completion_length": 3, "pad_token": "x", "num_tokens": 4, "token_entropy": 1}
    assert remove_secrets(harmless) == harmless
    assert remove_secrets({"api_key": "x", "password": 1, "list": [{"hub_token": "y"}]}) == {"list": [{}]}


# What a stranger's files may say, in words that would act in Markdown or HTML.
EVIL = "<script>x</script> [a](javascript:x) ![i](http://e.com/i.png) `</code>` www.e.com\n# Heading\n\u202e````\n| z"
EVIL += "\x1b"  # YAML writes such a text with escapes, which it reads again


def rendered(card):
    """The tokens of the card as GitHub reads it, those inside of paragraphs included."""
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(card.text)
    return [inner for token in tokens for inner in (token, *(token.children or []))]


def test_no_text_of_a_stranger_acts_in_the_card(folder):
    """In every place where the card shows a text of a file; it has the headings of any other card, and no link."""
    headings = [token for token in rendered(model_card(folder(passk=PASSK))) if token.type == "heading_open"]
    passk = PASSK | {"task": EVIL, "split": EVIL, "level": EVIL, "in_training": EVIL}
    for base in ({"name": EVIL, "hub_id": EVIL}, {"name": EVIL, "hub_id": None}):
        run = folder(passk=passk, config={"task": EVIL, "run_name": EVIL}, env={"variant": EVIL, "base_model": base})
        card = model_card(run, repo=EVIL)
        assert "\u202e" not in str(card)
        kinds = [token.type for token in rendered(card)]
        assert not {"html_inline", "html_block", "link_open", "image", "s_open"} & set(kinds)
        assert kinds.count("heading_open") == len(headings)
        assert kinds.count("fence") == 1
