import json
import math

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from trl_prorl.eval import drift
from trl_prorl.eval.drift import token_drift
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import load_tokenizer


def test_token_drift_by_hand():
    """
    π = (1/2, 1/4, 1/4), π₀ = (1/4, 1/4, 1/2): KL = ½ ln 2 − ¼ ln 2; both entropies are 1.5 ln 2. A token with a logit
    of −∞ on both sides adds nothing.
    """
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.5, 0.0]]))
    base = torch.log(torch.tensor([[0.25, 0.25, 0.5, 0.0], [0.25, 0.25, 0.5, 0.0]]))
    kl, agreement, entropy, base_entropy = token_drift(logits, base)
    assert kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-7)
    assert agreement.tolist() == [0.0, 1.0]
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert base_entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    # At temperature ½ probabilities are squared and normalised: (2/3, 1/6, 1/6).
    cold_kl, _, cold_entropy, _ = token_drift(logits[:1], base[:1], temperature=0.5)
    assert cold_entropy.item() == pytest.approx(-(2 / 3 * math.log(2 / 3) + 2 / 6 * math.log(1 / 6)))
    assert cold_kl.item() == pytest.approx(0.5 * math.log(4))


def test_drift_of_a_run(run_dir, base, task, add_checkpoints):
    """Every number against a plain loop: one sample at a time, no padding."""
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
    assert last["accuracy"] == samples["correct"].mean()
    rewards = [
        held_out.task.reward(text, held_out.rows[place // 3]) for place, text in enumerate(samples["completion"])
    ]
    assert last["reward"] == pytest.approx(sum(rewards) / 12)
    assert (run_dir / "drift.png").stat().st_size > 1000
