import pytest
from transformers import set_seed

from eval.samples.models import load_model, load_tokenizer
from eval.samples.sampling import sample, stop_token_ids, until_stop


NEW_TOKENS = 6


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 0.01}])
def test_sampling_ignores_the_model_s_own_generation_config(base, task, setting):
    model, tokenizer = load_model(base), load_tokenizer(base)
    model.generation_config.update(do_sample=True, **setting)
    set_seed(0)
    sample(model, tokenizer, task, list(task.rows("test", 1)), 32, max_new_tokens=NEW_TOKENS)
    assert len(set(task.seen)) > 16


def test_every_sample_belongs_to_its_prompt(base, task, greedy_by_hand):
    """At a temperature this low all samples of a prompt are its greedy completion, penalties of the model's aside."""
    model, tokenizer, rows = load_model(base), load_tokenizer(base), list(task.rows("test", 5))
    model.generation_config.update(repetition_penalty=50.0)
    drawn = sample(model, tokenizer, task, rows, 3, temperature=1e-4, max_new_tokens=NEW_TOKENS)
    said = [greedy_by_hand(model, tokenizer, row["prompt"][0]["content"] + ">") for row in rows]
    assert len(set(said)) > 1
    assert task.seen == [text for text in said for _ in range(3)]
    assert [[one.text for one in samples] for samples in drawn] == [[text] * 3 for text in said]


def test_tokens_and_truncation(base, task):
    """
    The sampled tokens are kept, up to the one that ends: decoded they are the text, and only the cut ones are
    full.
    """
    model, tokenizer = load_model(base), load_tokenizer(base)
    set_seed(0)
    (samples,) = sample(model, tokenizer, task, list(task.rows("test", 1)), 200, max_new_tokens=NEW_TOKENS)
    assert {one.truncated for one in samples} == {True, False}
    for one in samples:
        assert tokenizer.decode(one.ids, skip_special_tokens=True) == one.text
        assert one.truncated == (tokenizer.eos_token_id not in one.ids)
        assert len(one.ids) == NEW_TOKENS if one.truncated else one.ids[-1] == tokenizer.eos_token_id


def test_until_stop():
    assert until_stop([4, 5, 1, 0, 0], [1, 9]) == ([4, 5, 1], True)
    assert until_stop([4, 5, 6], [1, 9]) == ([4, 5, 6], False)
    assert until_stop([1, 1, 1], [1]) == ([1], True)


def test_every_declared_token_stops(base):
    model, tokenizer = load_model(base), load_tokenizer(base)
    model.generation_config.eos_token_id = [5, 1]
    assert stop_token_ids(model, tokenizer) == [1, 5]
    model.generation_config.eos_token_id = None
    assert stop_token_ids(model, tokenizer) == [1]


def test_what_a_model_asks_of_generation_is_not_in_the_way(base, task):
    """Its own min_p, forbidden tokens, least length and beams: the samples are those of a model that asks nothing."""
    model, tokenizer, rows = load_model(base), load_tokenizer(base), list(task.rows("test", 2))

    def drawn():
        set_seed(0)
        return [
            one.ids
            for samples in sample(model, tokenizer, task, rows, 16, max_new_tokens=NEW_TOKENS)
            for one in samples
        ]

    plain = drawn()
    asks = {"min_p": 0.9, "suppress_tokens": list(range(3, 200)), "min_new_tokens": NEW_TOKENS, "num_beams": 2}
    model.generation_config.update(**asks)
    assert drawn() == plain and model.generation_config.min_p == 0.9
