"""Trust regions in place of the clip: by hand, against a float64 model of the papers' rules, and at their limits."""

import math
from itertools import combinations

import pytest
import torch
from run_record import read_rows
from slow import slow_but

from trl_prorl.parts import Part
from trl_prorl.supported import CLIPPED_LOSSES, TRUST_REGIONS
from trl_prorl.trust_region import beyond_mean, masked_tokens, sampler_of


REGIONS = tuple(TRUST_REGIONS)
FIXED = {"per_device_train_batch_size": 4}

# Probabilities of tokens under μ and π, and whether they are outside, for a positive and for a negative advantage.
# Binary KL, such as 0.5 log(0.5/0.7) + 0.5 log(0.5/0.3): 0.0872, 0.0872, 0.0009, 0.0367, 0, 0.0334, log 2.
SAMPLER = [0.5, 0.5, 0.001, 0.9, 0.4, 0.99, 1.0]
POLICY = [0.7, 0.3, 0.003, 0.8, 0.4, 0.94, 0.5]
BY_HAND = {
    ("dppo_tv", 0.15, 1): [1, 0, 0, 0, 0, 0, 0],
    ("dppo_tv", 0.15, -1): [0, 1, 0, 0, 0, 0, 1],
    ("dppo_tv", 0.04, -1): [0, 1, 0, 1, 0, 1, 1],
    ("dppo_kl", 0.05, 1): [1, 0, 0, 0, 0, 0, 0],
    ("dppo_kl", 0.05, -1): [0, 1, 0, 0, 0, 0, 1],
    ("dppo_kl", 0.0005, 1): [1, 0, 1, 0, 0, 0, 0],
    ("ipo", 0.3, 1): [0, 0, 0, 0, 0, 0, 1],
    ("ipo", 0.15, 1): [1, 1, 0, 0, 0, 0, 1],
    ("ipo", 0.15, -1): [1, 1, 0, 0, 0, 0, 1],
    # Squared log-ratios: outward with A > 0 are 0.1132 and 1.2069; with A < 0 0.2609, 0.0139, 0.0027 and 0.4805.
    ("m2po", 0.04, 1): [1, 0, 1, 0, 0, 0, 0],
    ("m2po", 0.12, 1): [0, 0, 1, 0, 0, 0, 0],
    ("m2po", 0.04, -1): [0, 1, 0, 0, 0, 0, 1],
    ("m2po", 0.1, -1): [0, 0, 0, 0, 0, 0, 1],  # (0.2609 + 0.0139 + 0.0027) / 3 = 0.0925
    ("m2po", 0.19, -1): [0, 0, 0, 0, 0, 0, 0],  # and with 0.4805, over 4: 0.1895
}


@pytest.mark.parametrize("case", BY_HAND, ids=str)
def test_masks_by_hand(case):
    name, threshold, advantage = case
    logps = torch.tensor([POLICY]).log()
    sampler = torch.tensor([SAMPLER]).log()
    found = masked_tokens(name, threshold, logps, sampler, torch.tensor([float(advantage)]), torch.ones(1, 7))
    assert found.tolist() == [[bool(value) for value in BY_HAND[case]]]


def test_a_binary_kl_where_a_probability_is_one():
    """0 log 0 is 0: a sampler that was certain, a policy that has become so, and both."""
    sampler = torch.tensor([[0.0, math.log(0.5), 0.0]])
    logps = torch.tensor([[math.log(0.9), 0.0, 0.0]])
    for advantage, expected in ((-1.0, [True, False, False]), (1.0, [False, True, False])):
        found = masked_tokens("dppo_kl", 0.1, logps, sampler, torch.tensor([advantage]), torch.ones(1, 3))
        assert found.tolist() == [expected]


def test_m2po_keeps_as_many_as_any_choice_of_tokens_could():
    """By enumeration of all choices. Those with a mean within the threshold are no larger than the tokens kept."""
    torch.manual_seed(0)
    for threshold in (0.01, 0.1, 0.3, 0.6, 2.0):
        values = torch.rand(2, 5)
        tokens = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]]).bool()
        beyond = beyond_mean(values, tokens, threshold)
        assert not beyond[~tokens].any()
        some = values[tokens].tolist()
        choices = [choice for size in range(len(some) + 1) for choice in combinations(some, size)]
        within = [len(choice) for choice in choices if sum(choice) <= threshold * len(choice)]
        kept = values[tokens & ~beyond]
        assert len(kept) == max(within)
        assert sorted(kept.tolist()) == sorted(some)[: len(kept)]


# ---------------------------------------------------------------- TRL's loss, against a float64 model token by token


def model_outside(name, threshold, rows):
    """The papers' rules; `rows` has (log π, log μ, A) of each token that counts. Returns which are outside."""
    outside = set()
    outward = {}
    for number, (logp, sampler, advantage) in rows.items():
        pi, mu = math.exp(logp), math.exp(sampler)
        ratio = pi / mu
        if (advantage > 0 and ratio > 1) or (advantage < 0 and ratio < 1):
            outward[number] = math.log(ratio) ** 2
            kl = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
            if (name == "dppo_tv" and abs(mu - pi) > threshold) or (name == "dppo_kl" and kl > threshold):
                outside.add(number)
        if name == "ipo" and abs(pi - mu) > threshold:
            outside.add(number)
    while name == "m2po" and outward and sum(outward.values()) / len(outward) > threshold:
        largest = max(outward, key=outward.get)  # algorithm 1
        outside.add(largest)
        del outward[largest]
    return outside


def model_loss(loss_type, name, threshold, batch):
    """Loss and ∂loss/∂logp in float64, and the share of tokens outside."""
    logps, old, sampler = (batch[key].double() for key in ("logps", "old", "sampler"))
    mask, advantages = batch["mask"], batch["advantages"].double()
    rows, columns = mask.shape
    tokens = [(i, t) for i in range(rows) for t in range(columns) if mask[i, t]]
    of_tokens = {(i, t): (logps[i, t].item(), sampler[i, t].item(), advantages[i].item()) for i, t in tokens}
    outside = model_outside(name, threshold, of_tokens)
    lengths = mask.sum(1).tolist()
    weight = {
        "grpo": lambda i: 1 / lengths[i] / rows,
        "bnpo": lambda i: 1 / len(tokens),
        "dr_grpo": lambda i: 1 / (rows * batch["longest"]),
        "dapo": lambda i: 1 / batch["items"],
        "luspo": lambda i: 1 / rows,
    }[loss_type]
    loss = 0.0
    gradient = torch.zeros_like(logps)
    for i, t in tokens:
        if (i, t) not in outside:
            value = -math.exp(logps[i, t] - old[i, t]) * advantages[i].item() * weight(i)
            loss += value
            gradient[i, t] = value
    return loss, gradient, len(outside) / len(tokens)


class Kept(Part):
    """Keep TRL's metrics of the micro-batches."""

    def __init__(self):
        self.trl_metrics = []

    def on_loss(self, micro_batch):
        self.trl_metrics.append(micro_batch.trl_metrics)


def random_batch(longest):
    torch.manual_seed(1)
    old = -torch.rand(4, 6) * 2 - 0.05
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[1, 4:] = 0
    mask[3, 2:] = 0
    return {
        "old": old,
        "sampler": old,
        "logps": (old + torch.randn(4, 6) * 0.4).clamp(max=-0.01),
        "mask": mask,
        "advantages": torch.tensor([1.3, -0.7, 0.0, -1.1]),
        "longest": longest,
        "items": 17,
    }


def compute(trainer, batch, **others):
    """Return the loss of fixed log-probabilities, its gradient by them, and the share of masked tokens."""
    logps = batch["logps"].clone().requires_grad_()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.acceleration.score = lambda model, *args, **kwargs: (logps, torch.zeros_like(logps), None)
    ones = torch.ones(len(logps), 2, dtype=torch.long)
    inputs = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": torch.ones_like(batch["mask"]),
        "completion_mask": batch["mask"],
        "advantages": batch["advantages"],
        "old_per_token_logps": batch["old"],
        "num_items_in_batch": torch.tensor(batch["items"]),
        **others,
    }
    kept = Kept()
    trainer.parts["kept"] = kept
    loss = trainer.compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert torch.equal(inputs["advantages"], batch["advantages"])  # the buffer's, for the next pass
    return loss.item(), gradient, kept.trl_metrics[0]["clip_ratio/region_mean"]


@pytest.mark.parametrize("loss_type", CLIPPED_LOSSES)
@pytest.mark.parametrize(
    "name, threshold", [("dppo_tv", 0.1), ("dppo_kl", 0.02), ("ipo", 0.1), ("m2po", 0.04), ("m2po", 1e-9)]
)
def test_loss_gradient_and_share_against_a_float64_model(make_trainer, loss_type, name, threshold):
    keys = {"trust_region": name, "trust_region_threshold": threshold, "loss_type": loss_type, "num_iterations": 2}
    trainer = make_trainer(**FIXED, **keys)
    batch = random_batch(trainer.max_completion_length)
    loss, gradient, share = compute(trainer, batch)
    expected_loss, expected_gradient, expected_share = model_loss(loss_type, name, threshold, batch)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    assert torch.allclose(gradient.double(), expected_gradient, atol=1e-6, rtol=0)
    assert share == pytest.approx(expected_share, abs=1e-6) and 0 < share < 1


@pytest.mark.parametrize("name", REGIONS)
def test_the_sampler_s_own_log_probabilities_are_the_anchor(make_trainer, name):
    """vLLM's, where TRL has them: they decide what is masked, and the ratio stays that to π_old."""
    trainer = make_trainer(trust_region=name, loss_type="grpo", num_iterations=2, **FIXED)
    batch = random_batch(trainer.max_completion_length)
    batch["sampler"] = (batch["old"] + torch.tensor([0.9, -0.9, 0.5, -0.5, 0.2, 0.0])).clamp(max=-0.01)
    loss, gradient, share = compute(trainer, batch, sampling_per_token_logps=batch["sampler"])
    threshold = {"dppo_tv": 0.15, "dppo_kl": 0.05, "ipo": 0.3, "m2po": 0.04}[name]  # the defaults
    expected_loss, expected_gradient, expected_share = model_loss("grpo", name, threshold, batch)
    assert (loss, share) == (pytest.approx(expected_loss, abs=1e-6), pytest.approx(expected_share, abs=1e-6))
    assert torch.allclose(gradient.double(), expected_gradient, atol=1e-6, rtol=0)
    assert share != pytest.approx(model_loss("grpo", name, threshold, batch | {"sampler": batch["old"]})[2])


@pytest.mark.parametrize("name", TRUST_REGIONS)
def test_a_token_whose_sampler_gave_no_log_probability_is_compared_with_pi_old(name):
    """The second token is far from π_old: it has no gradient, as without a sampler."""
    logps, old, advantages = torch.tensor([[-1.0, -0.1]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1)
    batch = {"old_per_token_logps": old, "sampling_per_token_logps": torch.tensor([[-1.0, math.nan]])}
    masked = masked_tokens(name, 0.04, logps, sampler_of(batch, logps), advantages, torch.ones(1, 2))
    assert masked.tolist() == [[False, True]]


def test_a_kl_penalty_acts_on_masked_tokens(make_trainer):
    keys = {"trust_region": "ipo", "trust_region_threshold": 1e-9, "loss_type": "grpo", "num_iterations": 2}
    trainer = make_trainer(beta_old=0.1, **keys, **FIXED)
    batch = random_batch(trainer.max_completion_length)
    log_ratio = batch["logps"] - batch["old"]
    expected = 0.1 * log_ratio.exp() * log_ratio * batch["mask"] / batch["mask"].sum(1, keepdim=True) / 4
    assert torch.allclose(compute(trainer, batch)[1], expected, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- whole runs

STALE = {"num_iterations": 3, "max_steps": 6, "learning_rate": 2e-2}


@pytest.mark.parametrize("name", REGIONS)
def test_a_threshold_without_bound_is_no_clip(run, largest_difference, name):
    unclipped = run(loss_mode="unclipped", **STALE)
    endless = run(trust_region=name, trust_region_threshold=1e30, **STALE)
    assert largest_difference(endless, unclipped) == 0.0
    assert largest_difference(run(trust_region=name, trust_region_threshold=1e-4, **STALE), unclipped) > 1e-4


@pytest.mark.parametrize("name", REGIONS)
def test_a_threshold_near_0_trains_nothing_that_moves_away(run, name):
    rows = read_rows(run(trust_region=name, trust_region_threshold=1e-30, log_update_norm=True, **STALE))
    first = [row for row in rows if row["clip_region_mean"] == 0.0]
    later = [row for row in rows if row["clip_region_mean"] > 0.0]
    assert [row["step"] for row in first] == [1, 4]
    assert all(row["grad_norm"] > 0 for row in first)
    assert {row["step"] for row in later} == {2, 3, 5, 6}
    if name == "ipo":  # it masks a token that comes back as well
        assert max(row["grad_norm"] for row in later) < 1e-3 * min(row["grad_norm"] for row in first)


@pytest.mark.parametrize("name", slow_but(REGIONS, "dppo_tv", "m2po"))
def test_accelerations_and_accumulation(run, largest_difference, name):
    keys = {"trust_region": name, "trust_region_threshold": 1e-3, **STALE}
    plain = run(**keys)
    assert largest_difference(run(pack_groups="on", reuse_old_logps=True, skip_zero_rows=True, **keys), plain) < 1e-5
    halves = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "loss_type": "dapo"}
    accumulated = run(**keys, **halves)
    packed = run(pack_groups="on", reuse_old_logps=True, **keys, **halves)
    assert largest_difference(packed, accumulated) < 1e-5


def test_a_rollout_that_gives_its_log_probabilities_is_the_anchor_from_the_first_pass_on(run):
    """As vLLM's do: the first use of a batch already has tokens outside, if the sampler was far away."""

    def rollout(prompts, trainer):
        ids = trainer.tokenize_prompts(prompts)
        completions = trainer.generate_tokens(ids, 6)
        far = [[-9.0] * len(tokens) for tokens in completions]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": far}

    keys = {"trust_region": "ipo", "trust_region_threshold": 1e-3, "num_iterations": 2, "max_steps": 2}
    near = read_rows(run(**keys))
    given = read_rows(run(trainer_kwargs={"rollout_func": rollout}, **keys))
    assert near[0]["clip_region_mean"] == 0.0
    assert given[0]["clip_region_mean"] > 0.5
