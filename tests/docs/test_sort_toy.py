"""docs/examples/sort_toy: both engines against all 125 responses, against one another, and from the command line."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from doc_pages import ROOT


FOLDER = ROOT / "docs" / "examples"
sys.path.append(str(FOLDER))

from sort_toy import problem, run, with_numpy, with_torch  # noqa: E402
from sort_toy.exchange import EngineAdam  # noqa: E402
from sort_toy.problem import EVERY_RESPONSE, PROMPTS, Batch, Setting, initial_weights  # noqa: E402


EXACT = 1e-12  # of gradients of about 0.01 to 0.1, in float64
PROMPT_COUNT = len(PROMPTS)
RESPONSE_COUNT = len(EVERY_RESPONSE)


# The toy once more, by loops over scalars and matrices, for complex weights: if one weight is moved by an imaginary h,
# the imaginary part of a function over h is its derivative, to the last digit.


def logps_of(weights):
    """Log-probabilities by prompt and position."""
    embedding = weights["embedding"]
    encode = weights["encode"]
    decode = weights["decode"]
    found = []
    for prompt in PROMPTS:
        hidden = sum(embedding[number] @ encode[place] for place, number in enumerate(prompt))
        logits = [embedding @ (hidden @ matrix) for matrix in decode]
        found.append([row - np.log(np.exp(row).sum()) for row in logits])
    return np.array(found)


DRAW = np.random.default_rng(9)
DIRECTION = {name: DRAW.normal(size=array.shape) for name, array in initial_weights(0).items()}


def derivative(function, weights):
    """A function of log-probabilities, and its derivative along one direction through all weights: loops are slow."""
    moved = function(logps_of({name: array + 1e-30j * DIRECTION[name] for name, array in weights.items()}))
    return moved.real, moved.imag / 1e-30


def along(gradient):
    return sum((gradient[name] * DIRECTION[name]).sum() for name in DIRECTION)


def probability(logps, prompt):
    """Of each of the 125 responses."""
    return np.array([np.exp(sum(logps[prompt, place, r[place]] for place in range(3))) for r in EVERY_RESPONSE])


def expected_reward(rewards):
    return lambda logps: sum((probability(logps, p) * rewards[p]).sum() for p in range(PROMPT_COUNT)) / PROMPT_COUNT


def kl_per_token(anchor):
    return lambda logps: (np.exp(logps) * (logps - anchor)).sum(axis=-1).mean()


def chosen(logps):
    """Log-probabilities of the tokens of every response, shape `(3, 125, 3)`."""
    return np.array([[[logps[p, t, r[t]] for t in range(3)] for r in EVERY_RESPONSE] for p in range(PROMPT_COUNT)])


@pytest.fixture(scope="module")
def weights():
    return initial_weights(0)


@pytest.fixture(scope="module")
def before():
    """Weights a few updates ago: ratios lie between 0.6 and 1.6."""
    rng = np.random.default_rng(5)
    return {name: array + 0.05 * rng.normal(size=array.shape) for name, array in initial_weights(0).items()}


def every_response(old, anchor, advantages):
    """A batch in which every response counts by its probability under the policy that sampled: an exact mean."""
    weight = np.array([probability(old, p) for p in range(PROMPT_COUNT)]) / PROMPT_COUNT
    tokens = np.broadcast_to(EVERY_RESPONSE, (PROMPT_COUNT, RESPONSE_COUNT, 3))
    return Batch(tokens, advantages, chosen(old), chosen(anchor), weight)


def by_torch(weights, batch, setting):
    model = with_torch.Sorter(weights)
    tensors = {name: torch.tensor(value) for name, value in vars(batch).items()}
    loss = with_torch.objective(model(torch.tensor(PROMPTS)), Batch(**tensors), setting)
    loss.backward()
    return loss.item(), {name: param.grad.numpy() for name, param in model.named_parameters()}


def by_numpy(weights, batch, setting):
    logps, activations = with_numpy.forward(weights, PROMPTS)
    loss, on_logps = with_numpy.objective(logps, batch, setting)
    return loss, with_numpy.backward(weights, PROMPTS, logps, activations, on_logps)


def distance(first, second):
    assert first.keys() == second.keys()
    return max(np.abs(first[name] - second[name]).max() for name in first)


def reward_table(reward):
    """By loops, from the words of the page."""
    table = np.zeros((PROMPT_COUNT, RESPONSE_COUNT))
    for p, prompt in enumerate(PROMPTS.tolist()):
        for r, response in enumerate(EVERY_RESPONSE.tolist()):
            if reward == "distance":
                table[p, r] = sum(a == b for a, b in zip(response, sorted(prompt), strict=True)) / 3
            else:
                pairs = [response[0] <= response[1], response[1] <= response[2]]
                table[p, r] = (sum(number in response for number in prompt) + sum(pairs)) / 5
    return table


@pytest.mark.parametrize("loss", problem.LOSSES)
def test_the_gradient_before_the_first_update_is_that_of_the_expected_reward(loss, weights):
    rewards = reward_table("inclusion_ordering")
    policy = logps_of(weights)
    _, exact = derivative(expected_reward(rewards), weights)
    mean = np.array([(probability(policy, p) * rewards[p]).sum() for p in range(PROMPT_COUNT)])[:, None]
    for advantages in (rewards, rewards - mean):  # a baseline changes nothing in the mean
        batch = every_response(policy, policy, advantages)
        _, gradient = by_numpy(weights, batch, Setting(loss=loss))
        # A mean over three tokens, and a loss is descended.
        assert along(gradient) == pytest.approx(-exact / 3, abs=EXACT)
        assert abs(exact) > 1e-2


@pytest.mark.parametrize("loss, beyond", [("unclipped", 0.0), ("clipped", 0.01), ("clipped", 0.2)])
def test_the_gradient_after_some_updates_is_that_of_the_surrogate(loss, beyond, weights, before):
    old = logps_of(before)
    rewards = reward_table("distance") - 0.4
    batch = every_response(old, old, rewards)
    old_chosen = chosen(old)

    def surrogate(logps):
        total = 0.0
        for p, r, t in product(range(PROMPT_COUNT), range(RESPONSE_COUNT), range(3)):
            ratio = np.exp(logps[p, t, EVERY_RESPONSE[r][t]] - old_chosen[p, r, t])
            gain = ratio * rewards[p, r]
            if loss == "clipped":
                bounded = min(max(ratio.real, 1 - beyond), 1 + beyond) * rewards[p, r]
                gain = gain if gain.real <= bounded else bounded
            total -= batch.weights[p, r] * gain / 3
        return total

    moved, exact = derivative(surrogate, weights)
    value, gradient = by_numpy(weights, batch, Setting(loss=loss, epsilon=beyond))
    assert value == pytest.approx(moved, abs=EXACT)
    assert along(gradient) == pytest.approx(exact, abs=EXACT)
    assert abs(exact) > 1e-3


def test_k3_times_the_ratio_has_the_gradient_of_the_kl_and_k3_alone_has_not(weights, before):
    anchor = logps_of(initial_weights(1))
    kl, exact = derivative(kl_per_token(anchor), weights)
    batch = every_response(logps_of(before), anchor, np.zeros((PROMPT_COUNT, RESPONSE_COUNT)))
    setting = {"loss": "unclipped", "anchor": "reference", "beta": 0.7}
    value, corrected = by_numpy(weights, batch, Setting(**setting, bias_correction=True))
    assert value == pytest.approx(0.7 * kl, abs=EXACT)
    assert along(corrected) == pytest.approx(0.7 * exact, abs=EXACT)
    _, alone = by_numpy(weights, batch, Setting(**setting))
    assert distance(alone, corrected) > 1e-3


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss", problem.LOSSES)
def test_the_backward_by_hand_is_autograd_s(loss, beta, correction, weights, before):
    """So what is exact for one engine is so for the other."""
    rng = np.random.default_rng(2)
    old = logps_of(before)
    anchor = logps_of(initial_weights(1))
    batch = every_response(old, anchor, rng.normal(size=(PROMPT_COUNT, RESPONSE_COUNT)))
    setting = Setting(loss=loss, epsilon=0.2, beta=beta, anchor="reference", bias_correction=correction)
    loss_of_torch, gradients_of_torch = by_torch(weights, batch, setting)
    loss_of_numpy, gradients_of_numpy = by_numpy(weights, batch, setting)
    assert loss_of_torch == pytest.approx(loss_of_numpy, abs=EXACT)
    assert distance(gradients_of_torch, gradients_of_numpy) < EXACT


@pytest.mark.parametrize("reward", problem.REWARDS)
def test_rewards(reward):
    every = np.broadcast_to(EVERY_RESPONSE, (PROMPT_COUNT, RESPONSE_COUNT, 3))
    expected = reward_table(reward)
    assert np.array_equal(with_numpy.rewards_of(every, PROMPTS, reward), expected)
    assert np.array_equal(with_torch.rewards_of(torch.tensor(every), reward).numpy(), expected)
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
    """Log-probabilities by the loops above, rewards from the words of the page, deltas of mean 0 in a group."""
    path = tmp_path / "new" / "samples.tsv"
    assert run.main(["--epochs", "2", "--log", str(path)]) == 0
    _, *lines = (line.split("\t") for line in path.read_text().splitlines())
    logps = logps_of(initial_weights(0))
    rewards = reward_table("inclusion_ordering")
    every = [" ".join(map(str, response)) for response in EVERY_RESPONSE]
    for place, (_, _, response, logp, reward, _) in enumerate(lines[:30]):
        p = place // 10
        r = every.index(response)
        assert float(logp) == pytest.approx(np.log(probability(logps, p)[r]), abs=6e-5)
        assert float(reward) == pytest.approx(rewards[p, r], abs=6e-5)
    deltas = np.array([float(line[-1]) for line in lines]).reshape(6, 10)
    assert np.abs(deltas.mean(axis=1)).max() < 1e-4
    assert np.abs(deltas).max() > 0.5


SHORT = Setting(epochs=7, inner_steps=5)


@pytest.fixture(scope="module")
def curves():
    """By arm: its setting, and what both engines make of it. A and C reset before the 4th and the 7th epoch."""
    found = {}
    for arm, keys in problem.ARMS.items():
        fields = {**vars(SHORT), **keys}
        if keys.get("reset_every"):
            fields["reset_every"] = 3
        setting = Setting(**fields)
        found[arm] = (setting, with_torch.train(setting), with_numpy.train(setting))
    return found


@pytest.mark.parametrize("arm", problem.ARMS)
def test_the_curves_agree(arm, curves):
    setting, first, second = curves[arm]
    assert len(first.loss) == len(first.reward) == SHORT.epochs
    assert run.largest_difference(first, second) < run.AGREEMENT
    # A curve that differs is told apart: another seed is not the same run.
    another = with_torch.train(Setting(**{**vars(setting), "seed": 1}))
    assert run.largest_difference(first, another) > 1e-3


def test_numbers_that_are_not_finite_are_no_agreement():
    fine = problem.Curves(loss=[0.0, 1.0], reward=[0.0, 1.0])
    broken = problem.Curves(loss=[0.0, float("nan")], reward=[0.0, 1.0])
    assert not run.largest_difference(fine, broken) <= run.AGREEMENT


def test_what_the_anchors_hold():
    """π_old is the policy until the first update on its samples, A's reference the control's until the first reset."""

    def rewards(arm, **keys):
        return with_torch.train(Setting(**problem.ARMS[arm], **keys)).reward

    one_update = {"epochs": 3, "inner_steps": 1}
    assert rewards("B", **one_update) == rewards("plain", **one_update) != rewards("control", **one_update)
    assert rewards("B", epochs=2, inner_steps=2) != rewards("plain", epochs=2, inner_steps=2)
    eleven = {"epochs": 11, "inner_steps": 3}
    control = rewards("control", **eleven)
    moved = rewards("A", **eleven)
    assert moved[:10] == control[:10]
    assert moved[10] != control[10]


def test_resets_separate_the_arms(curves):
    """Each arm and each mode of C is a run of its own."""
    assert len({tuple(first.reward) for _, first, _ in curves.values()}) == len(problem.ARMS)


def test_the_command(tmp_path, monkeypatch, capsys):
    """It compares the engines and leaves nothing, or ends in a picture; a wrong number is named."""
    monkeypatch.chdir(tmp_path)
    assert run.main(["--epochs", "2", "--compare"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert run.main(["--epochs", "2", "--output", "made/toy.png"]) == 0
    assert (tmp_path / "made" / "toy.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        run.main(["--epochs", "0"])
    assert "--epochs 0" in capsys.readouterr().err


def test_the_numpy_engine_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['trl_prorl'] = None\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        "from sort_toy.problem import ARMS, Setting\n"
        "from sort_toy.with_numpy import train\n"
        "print(len(train(Setting(epochs=2, inner_steps=2, **ARMS['C hard'])).reward))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "2", done.stderr[-2000:]


def test_the_files_of_an_update_are_the_project_s(tmp_path):
    from trl_prorl.interchange import UpdateInputs, UpdateOutputs, read

    begin = initial_weights(0)
    optimizer = EngineAdam(begin, 1e-3, tmp_path)
    ones = {name: np.ones_like(array) for name, array in begin.items()}
    optimizer.step(ones)
    optimizer.reset("soft", 0.5)
    optimizer.step(ones)
    inputs = read(UpdateInputs, tmp_path)
    outputs = read(UpdateOutputs, tmp_path)
    assert inputs.update == outputs.update == 2
    assert inputs.reset["mode"] == "soft"
    assert inputs.reset["alpha"] == 0.5
    assert inputs.names == ["embedding", "encode", "decode"]
    assert all(array.dtype == torch.float64 for array in outputs.parameters.values())
    # The first update is the learning rate; then m = 0.1 and v = 0.001 are halved, and the next gradient is 1 again.
    first = begin["embedding"] - 1e-3
    assert np.allclose(inputs.parameters["embedding"].numpy(), first, rtol=0.0, atol=1e-10)
    m = (0.9 * 0.05 + 0.1) / (1 - 0.9**2)
    v = (0.999 * 0.0005 + 0.001) / (1 - 0.999**2)
    assert np.allclose(optimizer.weights["embedding"], first - 1e-3 * m / np.sqrt(v), rtol=0.0, atol=1e-10)
