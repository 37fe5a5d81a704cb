import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import set_seed

from trl_prorl.eval.samples.models import load_tokenizer
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling, sample, stop_token_ids
from trl_prorl.upstream.weights import load_model


NEW_TOKENS = 6


@pytest.fixture
def model(base):
    return load_model(base, dtype=torch.float32)


@pytest.fixture
def tokenizer(base):
    return load_tokenizer(base)


@pytest.fixture(params=[None, {"recordings": None}], ids=["generate", "compact"])
def draw(request, task, model, tokenizer):
    """`sample` by either loop: what is said here holds of each."""

    def draw(prompts, n, **keys):
        rows = list(task.rows("test", prompts))
        sampling = SamplingSettings(max_new_tokens=NEW_TOKENS, **keys)
        return sample(model, tokenizer, task, rows, n, sampling, compact=request.param)

    return draw


def test_every_sample_belongs_to_its_prompt(model, tokenizer, task, greedy_by_hand, draw):
    """At a temperature this low all samples of a prompt are its greedy completion, penalties of the model's aside."""
    rows = list(task.rows("test", 5))
    model.generation_config.update(repetition_penalty=50.0)
    drawn = draw(5, 3, temperature=1e-4)
    said = [greedy_by_hand(model, tokenizer, row["prompt"][0]["content"] + ">") for row in rows]
    assert len(set(said)) > 1
    assert task.seen == [text for text in said for _ in range(3)]
    assert [[one["completion"] for one in samples] for samples in drawn] == [[text] * 3 for text in said]


def test_tokens_and_truncation(tokenizer, draw):
    """The sampled tokens are kept, up to the one that ends: decoded they are the text; only the cut ones are full."""
    set_seed(0)
    (samples,) = draw(1, 200)
    assert {one["truncated"] for one in samples} == {True, False}
    for one in samples:
        assert tokenizer.decode(one["ids"], skip_special_tokens=True) == one["completion"]
        assert one["truncated"] == (tokenizer.eos_token_id not in one["ids"])
        assert len(one["ids"]) == NEW_TOKENS if one["truncated"] else one["ids"][-1] == tokenizer.eos_token_id


def test_every_declared_token_stops(model, tokenizer):
    model.generation_config.eos_token_id = [5, 1]
    assert stop_token_ids(model, tokenizer) == [1, 5]
    model.generation_config.eos_token_id = None
    assert stop_token_ids(model, tokenizer) == [1]


def test_what_a_model_asks_of_generation_is_not_in_the_way(model, draw):
    """Its own top_k, min_p, forbidden tokens, length and beams: the samples are those of a model that asks nothing."""

    def drawn():
        set_seed(0)
        return [one["ids"] for samples in draw(2, 16) for one in samples]

    plain = drawn()
    asks = {"top_k": 1, "top_p": 0.01, "min_p": 0.9, "suppress_tokens": list(range(3, 200)), "num_beams": 2}
    model.generation_config.update(**asks, min_new_tokens=NEW_TOKENS)
    assert drawn() == plain
    assert model.generation_config.min_p == 0.9


def test_an_adapter_is_sampled_compactly_and_merged(model, tokenizer, task):
    """Greedy texts are those of the model with its adapter, by `generate`; on a CPU, in float32."""
    rows = list(task.rows("test", 6))

    def said(model, **how):
        return [
            one["ids"] for (one,) in sample(model, tokenizer, task, rows, 1, SamplingSettings(0, NEW_TOKENS), **how)
        ]

    plain = said(model)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False))
    slow = said(model)
    assert slow != plain  # the adapter does something
    merged, compact = prepare_for_sampling(model)
    assert compact == {"recordings": None}  # not on a GPU
    assert not isinstance(merged, PeftModel)
    assert said(merged, compact=compact) == slow
