import json
import math

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from eval import drift
from eval.drift_view import drift_series, drift_table
from eval.held_out import HeldOut
from eval.models import load_tokenizer
from eval.runs import load_run


def test_token_drift_by_hand():
    """π = (1/2, 1/4, 1/4), π₀ = (1/4, 1/4, 1/2): KL = ½ ln 2 − ¼ ln 2; both entropies are 1.5 ln 2."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]))
    base = torch.log(torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]))
    found = drift.token_drift(logits, base)
    assert found.kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-7)
    assert found.agreement.tolist() == [0.0, 1.0]
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert found.base_entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    # At temperature ½ probabilities are squared and normalised: (2/3, 1/6, 1/6).
    cold = drift.token_drift(logits[:1], base[:1], temperature=0.5)
    assert cold.entropy.item() == pytest.approx(-(2 / 3 * math.log(2 / 3) + 2 / 6 * math.log(1 / 6)))
    assert cold.kl.item() == pytest.approx(0.5 * math.log(4))


def test_kl_is_not_symmetric_and_not_negative():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, 7, generator=generator)
    there, back = drift.token_drift(a, b).kl, drift.token_drift(b, a).kl
    assert (there > 0).all()
    assert not torch.allclose(there, back, atol=1e-3)


def test_bootstrap_of_a_ratio():
    """Tokens are what is averaged over: prompts in lockstep leave no spread, whatever their lengths."""
    sums, tokens = np.tile([1.0, 30.0], 10), np.tile([10.0, 300.0], 10)
    assert drift.bootstrap_ratio(sums, tokens) == pytest.approx((0.1, 0.1))
    # 20 coins of 0 and 3: mean 1.5, standard error 1.5 / sqrt(20).
    low, high = drift.bootstrap_ratio(np.tile([0.0, 30.0], 10), np.full(20, 10.0))
    assert (low, high) == pytest.approx((1.5 - 1.96 * 0.335, 1.5 + 1.96 * 0.335), abs=0.1)
    assert np.isnan(drift.bootstrap_ratio(sums[:19], tokens[:19])).all()


def test_drift_of_a_run(run_dir, base, task, add_checkpoints, capsys):
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
    kl, same, entropy, tokens = 0.0, 0, 0.0, 0
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
    assert (run_dir / "drift.png").stat().st_size > 1000
    assert "Drift of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--samples", "0"], ["--samples 0", "at least 1"]),
        (["--prompts", "1"], ["--prompts 1", "at least 2"]),
        (["--temperature", "0"], ["--temperature 0", "above 0"]),
        (["--checkpoints", "5"], ["--checkpoints 5", "no such checkpoint"]),
    ],
)
def test_bad_input_is_one_line(run_dir, task, capsys, arguments, named):
    assert drift.main(["--run", str(run_dir), *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for part in named:
        assert part in message
    assert not (run_dir / "drift.json").exists()


def test_tokens_that_neither_model_can_say_are_no_nan():
    """By hand: ½ and ½ against ¼ and ¾, beside a token with a logit of −∞ on both sides."""
    nothing = float("-inf")
    policy = torch.tensor([[0.0, 0.0, nothing]])
    base = torch.tensor([[0.0, math.log(3.0), nothing]])
    found = drift.token_drift(policy, base)
    assert found.kl.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)
    assert found.entropy.item() == pytest.approx(math.log(2)) and found.base_entropy.isfinite().all()


def test_a_point_whose_step_is_not_known_is_shown_and_not_drawn(make_run, make_rows):
    points = [
        {
            "step": step,
            "kl_to_base": kl,
            "interval": [0.0, 1.0],
            "token_agreement": 0.9,
            "entropy": 1.0,
            "mean_tokens": 5,
        }
        for step, kl in ((0, 0.0), (None, 0.25))
    ]
    run = load_run(make_run("A", "A", make_rows(20), drift={"points": points}))
    assert list(drift_series(run, "kl_to_base").index) == [0]
    assert drift_table([run]).rows[0][1] == "–"
