import json
import math

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from trl_prorl.eval import drift
from trl_prorl.eval.analysis.language import real_text
from trl_prorl.eval.samples.models import load_tokenizer
from trl_prorl.eval.samples.run_samples import HeldOut
from trl_prorl.eval.samples.task_name import TaskName


def test_drift_of_a_run(run_dir, base, task, add_checkpoints, monkeypatch):
    """
    Every number against a plain loop: one sample at a time, no padding. The perplexity, as where the vocabulary has
    English words, is of the first tokens of the text.
    """
    monkeypatch.setattr("trl_prorl.eval.analysis.language.knows_words_of", lambda tokenizer, text: True)
    monkeypatch.setattr("trl_prorl.eval.drift.TEXT_TOKENS", 20)
    add_checkpoints(run_dir, 8)
    (run_dir / "metrics.jsonl").write_text('{"step": 20}\n')
    arguments = ["--run", str(run_dir), "--prompts", "4", "--samples", "3", "--checkpoints", "all"]
    assert drift.main(arguments) == 0
    result = json.loads((run_dir / "drift.json").read_text())
    assert [point["step"] for point in result["points"]] == [0, 8, 20]
    assert result["points"][0]["kl_to_base"] == pytest.approx(0.0, abs=1e-6)
    assert result["points"][0]["token_agreement"] == 1.0
    assert result["points"][0]["entropy"] == pytest.approx(result["points"][0]["base_entropy"])

    held_out = HeldOut(run_dir, "test", 4)
    samples = held_out.samples(held_out.trained, 3)
    tokenizer = load_tokenizer(base)
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    trained = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run_dir).eval()
    kl = 0.0
    same = 0
    entropy = 0.0
    tokens = 0
    for _, sample in samples.iterrows():
        question = tokenizer(sample["prompt"] + ">").input_ids
        for place, _ in enumerate(sample["ids"]):
            so_far = torch.tensor([question + list(sample["ids"][:place])])
            with torch.no_grad():
                p, q = (torch.softmax(model(so_far).logits[0, -1] / 0.7, -1) for model in (trained, plain))
            kl += float((p * (p / q).log()).sum())
            entropy -= float((p * p.log()).sum())
            same += int(p.argmax() == q.argmax())
            tokens += 1
    last = result["points"][-1]
    assert last["kl_to_base"] == pytest.approx(kl / tokens, rel=1e-4)
    assert last["entropy"] == pytest.approx(entropy / tokens, rel=1e-4)
    assert last["token_agreement"] == pytest.approx(same / tokens)
    assert last["mean_tokens"] == pytest.approx(tokens / 12)
    assert last["interval"] == [None, None]  # of 4 prompts
    # E log p under base at the policy's own samples is minus the KL less the entropy.
    assert last["base_logp"] == pytest.approx(-(kl + entropy) / tokens, rel=1e-4)
    assert last["gold"] == samples["correct"].mean()
    rewards = [
        held_out.task.reward(text, held_out.rows[place // 3]) for place, text in enumerate(samples["completion"])
    ]
    assert last["reward"] == pytest.approx(sum(rewards) / 12)
    assert last["distinct_1"] == len({number for ids in samples["ids"] for number in ids}) / tokens
    text = load_tokenizer(run_dir)(real_text(160)).input_ids[:20]
    for point, model in ((result["points"][0], plain), (last, trained)):
        with torch.no_grad():
            logps = torch.log_softmax(model(torch.tensor([text])).logits[0, :-1], -1)
        surprise = -sum(float(logps[place, token]) for place, token in enumerate(text[1:])) / 19
        assert point["text_perplexity"] == pytest.approx(math.exp(surprise), rel=1e-4)
    assert (run_dir / "drift.png").stat().st_size > 1000


def test_drift_on_a_task_that_was_not_trained(run_dir, task, monkeypatch):
    class Later(type(task)):
        def rows(self, split, n, seed=0):
            return super().rows(split, n + 3, seed).select(range(3, n + 3))

    by_level = {None: task, 2: Later()}
    monkeypatch.setattr("trl_prorl.tasks.registry.get_task", lambda name, level=None: by_level[level])
    assert drift.main(["--run", str(run_dir), "--prompts", "3", "--samples", "2", "--others", "parity@2"]) == 0
    base, trained = json.loads((run_dir / "drift.json").read_text())["points"]
    assert "text_perplexity" not in trained  # the vocabulary has 18 characters
    assert base["others"]["parity@2"]["kl_to_base"] == pytest.approx(0.0, abs=1e-6)
    other = trained["others"]["parity@2"]
    assert 0 < other["kl_to_base"] != trained["kl_to_base"]
    held_out = HeldOut(run_dir, "test", 3, name=TaskName.parse("parity@2"))
    assert other["gold"] == held_out.samples(held_out.trained, 2)["correct"].mean()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--samples 0", "--samples "),
        ("--temperature 0", "--temperature "),
        ("--checkpoints 5", "--checkpoints 5"),
        ("--others @2", "--others @2"),
    ],
)
def test_bad_input_is_one_line(run_dir, task, capsys, arguments, named):
    assert drift.main(["--run", str(run_dir), *arguments.split()]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert named in message
    assert not (run_dir / "drift.json").exists()
