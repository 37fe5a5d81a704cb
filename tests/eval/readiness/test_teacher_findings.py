"""What a preflight says about a teacher, from one whose every sample is known."""

import pytest
import torch
from tiny_run import constant, save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl import preflight
from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval.readiness.teacher import ACCURACY, COST, DISTANCE


@pytest.fixture(scope="module")
def certain(tmp_path_factory):
    """The path of a model that samples its greedy answer."""
    path = save_tiny_model(tmp_path_factory.mktemp("certain"), byte_tokenizer())
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.model.norm.weight.mul_(300.0)
    model.save_pretrained(path)
    return path


@pytest.fixture
def greedy(certain):
    """A function that says whether a text is that model's greedy answer."""
    tokenizer = AutoTokenizer.from_pretrained(certain)
    model = AutoModelForCausalLM.from_pretrained(certain)

    def verify(completion, row):
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")[
            "input_ids"
        ]
        generated = model.generate(ids, max_new_tokens=6, do_sample=False)
        return completion == tokenizer.decode(generated[0, ids.size(1) :], skip_special_tokens=True)

    return verify


def test_a_better_teacher_and_the_starting_model_as_its_own(make_trainer, certain, greedy, tiny_model):
    keys = {"beta": 0.3, "reward": constant(0.0), "reward_weights": [0.0], "prompts": 6}
    better = {finding.what: finding for finding in preflight(make_trainer(**keys, ref_model=certain), verify=greedy)}
    assert better[ACCURACY].values["pass_rate"] > 0.8  # the first of two equal logits may differ by padding
    assert better[ACCURACY].values["of_starting_model"] == 0.0
    assert better[DISTANCE].values["kl"] > 1
    assert better[COST].values["gib"] * 2**30 == pytest.approx(4 * 27_000, rel=0.5)
    assert not any(better[what].change for what in (ACCURACY, "groups that give no gradient"))
    same = {finding.what: finding for finding in preflight(make_trainer(**keys, ref_model=tiny_model), verify=greedy)}
    assert "starting model" in same[ACCURACY].change
    assert same[DISTANCE].values["kl"] == pytest.approx(0.0, abs=1e-6)
