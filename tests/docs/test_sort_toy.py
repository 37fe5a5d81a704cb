"""docs/examples/sort_toy: both engines against all 125 responses, against one another, and from the command line."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from doc_pages import ROOT


FOLDER = ROOT / "docs" / "examples"
sys.path.append(str(FOLDER))

from sort_toy import problem, run, with_numpy, with_torch  # noqa: E402
from sort_toy.problem import EVERY_RESPONSE, LOSSES, PROMPTS, REWARD, Batch, Setting, initial_weights  # noqa: E402


EXACT = 1e-12  # of gradients of about 0.01 to 0.1, in float64
PROMPT_COUNT = len(PROMPTS)
EVERY = np.broadcast_to(EVERY_RESPONSE, (PROMPT_COUNT, *EVERY_RESPONSE.shape))


def chosen(logps):
    """Log-probabilities of the tokens of every response, shape `(3, 125, 3)`, of an array or a tensor."""
    return logps[:, [0, 1, 2], EVERY_RESPONSE]


def logps_of(weights):
    return with_numpy.forward(weights, PROMPTS)[0]


def exact(function, weights):
    """A function of log-probabilities, and its gradient in the weights by autograd."""
    model = with_torch.Sorter(weights)
    value = function(model(torch.tensor(PROMPTS)))
    value.backward()
    return value.item(), {name: param.grad.numpy() for name, param in model.named_parameters()}


def by_numpy(weights, batch, **setting):
    """The loss, and its gradient by hand."""
    logps, activations = with_numpy.forward(weights, PROMPTS)
    loss, on_logps = with_numpy.objective(logps, batch, Setting(**setting))
    return loss, with_numpy.backward(weights, PROMPTS, logps, activations, on_logps)


def distance(first, second, factor=1.0):
    assert first.keys() == second.keys()
    return max(np.abs(first[name] - factor * second[name]).max() for name in first)


@pytest.fixture(scope="module")
def weights():
    return initial_weights(0)


@pytest.fixture(scope="module")
def old():
    """The policy a few updates ago: ratios lie between 0.6 and 1.6."""
    rng = np.random.default_rng(5)
    return logps_of({name: array + 0.05 * rng.normal(size=array.shape) for name, array in initial_weights(0).items()})


@pytest.fixture(scope="module")
def anchor():
    return logps_of(initial_weights(1))


def every_response(old, anchor, advantages):
    """A batch in which every response counts by its probability under the policy that sampled: an exact mean."""
    weight = np.exp(chosen(old).sum(axis=-1)) / PROMPT_COUNT
    return Batch(EVERY, advantages, chosen(old), chosen(anchor), weight)


def reward_table(reward):
    """By loops, from the words of the page."""
    table = np.zeros(EVERY.shape[:2])
    for p, prompt in enumerate(PROMPTS.tolist()):
        for r, response in enumerate(EVERY_RESPONSE.tolist()):
            if reward == "distance":
                table[p, r] = sum(a == b for a, b in zip(response, sorted(prompt), strict=True)) / 3
            else:
                pairs = [response[0] <= response[1], response[1] <= response[2]]
                table[p, r] = (sum(number in response for number in prompt) + sum(pairs)) / 5
    return table


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_before_the_first_update_is_that_of_the_expected_reward(loss, weights):
    rewards = torch.tensor(reward_table("inclusion_ordering"))

    def expected_reward(logps):
        return (chosen(logps).sum(dim=-1).exp() * rewards).sum() / PROMPT_COUNT

    _, gradient = exact(expected_reward, weights)
    policy = logps_of(weights)
    mean = (np.exp(chosen(policy).sum(axis=-1)) * rewards.numpy()).sum(axis=1, keepdims=True)
    for advantages in (rewards.numpy(), rewards.numpy() - mean):  # a baseline changes nothing in the mean
        _, found = by_numpy(weights, every_response(policy, policy, advantages), loss=loss)
        assert distance(found, gradient, -1 / 3) < EXACT  # a mean over three tokens, and a loss is descended
    assert distance(gradient, gradient, 0.0) > 1e-2


@pytest.mark.parametrize("loss, beyond", [("unclipped", 0.0), ("clipped", 0.01), ("clipped", 0.2)])
def test_the_gradient_after_some_updates_is_that_of_the_surrogate(loss, beyond, weights, old):
    rewards = reward_table("distance") - 0.4
    batch = every_response(old, old, rewards)
    gains = torch.tensor(rewards)[..., None]

    def surrogate(logps):
        ratio = (chosen(logps) - torch.tensor(chosen(old))).exp()
        gain = ratio * gains
        if loss == "clipped":
            gain = torch.minimum(gain, ratio.clamp(1 - beyond, 1 + beyond) * gains)
        return -(torch.tensor(batch.weights) * gain.mean(dim=-1)).sum()

    value, gradient = exact(surrogate, weights)
    found, by_hand = by_numpy(weights, batch, loss=loss, epsilon=beyond)
    assert found == pytest.approx(value, abs=EXACT)
    assert distance(by_hand, gradient) < EXACT


def test_k3_times_the_ratio_has_the_gradient_of_the_kl_and_k3_alone_has_not(weights, old, anchor):
    value, gradient = exact(lambda logps: (logps.exp() * (logps - torch.tensor(anchor))).sum(dim=-1).mean(), weights)
    batch = every_response(old, anchor, np.zeros(EVERY.shape[:2]))
    setting = {"loss": "unclipped", "anchor": "reference", "beta": 0.7}
    found, corrected = by_numpy(weights, batch, **setting, bias_correction=True)
    assert found == pytest.approx(0.7 * value, abs=EXACT)
    assert distance(corrected, gradient, 0.7) < EXACT
    _, alone = by_numpy(weights, batch, **setting)
    assert distance(alone, corrected) > 1e-3


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_backward_by_hand_is_autograd_s(loss, correction, weights, old, anchor):
    """So what is exact for one engine is so for the other."""
    batch = every_response(old, anchor, np.random.default_rng(2).normal(size=EVERY.shape[:2]))
    tensors = Batch(**{name: torch.tensor(value) for name, value in vars(batch).items()})
    setting = {"loss": loss, "epsilon": 0.2, "beta": 0.3, "anchor": "reference", "bias_correction": correction}
    value, gradient = exact(lambda logps: with_torch.objective(logps, tensors, Setting(**setting)), weights)
    found, by_hand = by_numpy(weights, batch, **setting)
    assert found == pytest.approx(value, abs=EXACT)
    assert distance(by_hand, gradient) < EXACT


@pytest.mark.parametrize("reward", problem.REWARDS)
def test_rewards(reward):
    expected = reward_table(reward)
    assert np.array_equal(with_numpy.rewards_of(EVERY, PROMPTS, reward), expected)
    assert np.array_equal(with_torch.rewards_of(torch.tensor(EVERY), reward).numpy(), expected)
    # A response of the best reward is the sorted prompt, and nothing else.
    best = [EVERY_RESPONSE[row == 1.0].tolist() for row in expected]
    assert best == [[sorted(prompt)] for prompt in PROMPTS.tolist()]
    # By hand, 0 1 1 for 1 0 2: the places of 0 and 1 are right; 1 and 0 occur, both pairs are in order.
    place = EVERY_RESPONSE.tolist().index([0, 1, 1])
    assert expected[0, place] == pytest.approx({"distance": 2 / 3, "inclusion_ordering": 4 / 5}[reward])


@pytest.mark.parametrize("delta", problem.DELTAS)
def test_advantages(delta):
    groups = np.array([[1.0, 0.0, 0.0, 0.6], [0.6, 0.6, 0.6, 0.6], [0.0, 0.0, 0.0, 0.0], [0.8, 0.2, 0.8, 0.0]])
    theirs = with_torch.estimate(torch.tensor(groups).flatten(), 4, delta).view(4, 4)
    ours = with_numpy.advantages_of(groups, delta)
    assert np.allclose(ours, theirs.numpy(), rtol=0.0, atol=1e-14)
    by_hand = {
        "raw": [0.8, 0.2, 0.8, 0.0],
        "centered": [0.35, -0.25, 0.35, -0.45],
        "max": [0.35, 0.0, 0.35, 0.0],
        # Squares of the centred ones sum to 0.51, over 3.
        "group_normalized": np.array([0.35, -0.25, 0.35, -0.45]) / (np.sqrt(0.17) + 1e-4),
    }
    # TRL rounds 4 / 3 to float32.
    assert np.allclose(ours[3], by_hand[delta], rtol=0.0, atol=5e-8 if delta == "group_normalized" else 1e-14)


def test_a_sample_is_the_first_number_up_to_which_the_probabilities_exceed_the_random_one():
    logps = np.log(np.broadcast_to([0.5, 0.25, 0.125, 0.0625, 0.0625], (1, 3, 5)))
    numbers = np.array([[[0.0, 0.49, 0.51], [0.76, 0.88, 0.95], [0.74, 0.99, 1.0 - 2**-53]]])
    expected = [[[0, 0, 1], [2, 3, 4], [1, 4, 4]]]
    assert with_numpy.sample(logps, numbers).tolist() == expected
    assert with_torch.sample(torch.tensor(logps), numbers).tolist() == expected


def test_the_log_has_what_each_response_was_sampled_and_paid_by(tmp_path):
    path = tmp_path / "new" / "samples.tsv"
    assert run.main(["--epochs", "2", "--log", str(path)]) == 0
    log = pd.read_csv(path, sep="\t")
    places = [EVERY_RESPONSE.tolist().index([int(number) for number in text.split()]) for text in log["response"][:30]]
    at = np.repeat(range(3), 10), places
    logps = chosen(logps_of(initial_weights(0))).sum(axis=-1)
    assert log["log-probability"][:30].to_numpy() == pytest.approx(logps[at], abs=6e-5)
    assert log["reward"][:30].to_numpy() == pytest.approx(reward_table("inclusion_ordering")[at], abs=6e-5)
    deltas = log["delta"].to_numpy().reshape(6, 10)
    assert np.abs(deltas.mean(axis=1)).max() < 1e-4 < np.abs(deltas).max()


SHORT = {"epochs": 7, "inner_steps": 5}


@pytest.fixture(scope="module")
def curves():
    """By variant: its setting, and its curves by torch. A and C reset before the 4th and the 7th epoch."""
    settings = problem.variants(Setting(**SHORT))
    settings = {name: replace(one, reset_every=min(one.reset_every, 3)) for name, one in settings.items()}
    return {name: (setting, with_torch.train(setting)) for name, setting in settings.items()}


@pytest.mark.parametrize("variant", problem.VARIANTS)
def test_the_curves_agree(variant, curves):
    setting, first = curves[variant]
    assert first.shape == (2, SHORT["epochs"])
    assert np.abs(first - with_numpy.train(setting)).max() < run.AGREEMENT
    # Another seed, another variant and another mode of C are not the same run.
    others = [with_torch.train(replace(setting, seed=1))]
    others += [found for name, (_, found) in curves.items() if name != variant]
    assert min(np.abs(first - other)[REWARD].max() for other in others) > 1e-6


def test_what_the_anchors_hold():
    """π_old is the policy until the first update on its samples, A's reference the control's until the first reset."""

    def rewards(variant, **keys):
        return with_torch.train(Setting(**problem.VARIANTS[variant], **keys))[REWARD].tolist()

    one_update = {"epochs": 3, "inner_steps": 1}
    assert rewards("B", **one_update) == rewards("plain", **one_update) != rewards("control", **one_update)
    assert rewards("B", epochs=2, inner_steps=2) != rewards("plain", epochs=2, inner_steps=2)
    control, moved = (rewards(variant, epochs=11, inner_steps=3) for variant in ("control", "A"))
    assert moved[:10] == control[:10]
    assert moved[10] != control[10]


def test_the_command(tmp_path, monkeypatch, capsys):
    """It compares the engines and leaves nothing, or ends in a picture; a wrong number is named."""
    monkeypatch.chdir(tmp_path)
    assert run.main(["--epochs", "2", "--compare"]) == 0
    assert run.main(["--epochs", "2", "--output", "made/toy.png"]) == 0
    assert (tmp_path / "made" / "toy.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        run.main(["--epochs", "0"])
    assert "--epochs 0" in capsys.readouterr().err


def test_the_numpy_engine_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['trl_prorl'] = None\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        "from sort_toy.problem import VARIANTS, Setting\n"
        "from sort_toy.with_numpy import train\n"
        "print(train(Setting(epochs=2, inner_steps=2, **VARIANTS['C hard'])).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2, 2)", done.stderr[-2000:]
