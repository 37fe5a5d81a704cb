"""Tokens that do not count: log-probabilities there, however extreme, change no loss, no gradient and no record."""

import itertools
import math

import pytest
import torch
from run_record import read_rows, without_times
from trl import GRPOTrainer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.fast.packing import PackedScorer
from trl_prorl.kl import Anchors, token_weights
from trl_prorl.reference import rows_with_gradient
from trl_prorl.run.meter import Meter
from trl_prorl.supported import IMPORTANCE_LEVELS, LOSS_TYPES


# Of one scoring after another, so that log-ratios of both signs overflow in fp32, whose exp does so beyond 88.
SHIFTS = (-300.0, 0.0, -math.inf, 0.0, -1e30)


class LastTokenIsATools(ProRLTrainer):
    """The last column of a batch was written by a tool, as TRL marks it."""

    def _sample(self, *args, **kwargs):
        batch, outcome = super()._sample(*args, **kwargs)
        batch["tool_mask"] = torch.ones_like(batch["completion_mask"])
        batch["tool_mask"][:, -1] = 0
        return batch, outcome


@pytest.fixture
def shifted(monkeypatch):
    """A function that makes whoever scores find other log-probabilities, with gradient, where no token counts."""
    turns = itertools.cycle(SHIFTS)

    def shift(owner, name):
        original = getattr(owner, name)

        def score(scorer, model, ids, mask, *others, **keys):
            logps, *rest = original(scorer, model, ids, mask, *others, **keys)
            left_out = mask[:, -logps.shape[1] :] == 0
            left_out[:, -1] = True
            return torch.where(left_out, logps + next(turns), logps), *rest

        monkeypatch.setattr(owner, name, score)

    def install():
        shift(GRPOTrainer, "_get_per_token_logps_and_entropies")
        shift(PackedScorer, "__call__")

    return install


@pytest.mark.parametrize(
    "advantages, lengths, computed",
    [
        ([0.0, 0.0, 0.0], [0, 3, 2], [2]),  # the entropy of a row without tokens would be 0
        ([1.0, 0.0, 0.0], [0, 3, 2], [2]),
        ([1.0, 2.0, 0.0], [0, 3, 2], [1]),
        ([1.0, 0.0, 0.0], [0, 0, 0], [0]),  # every process needs a backward pass
    ],
)
def test_a_row_without_tokens_is_not_the_only_one_that_is_computed(advantages, lengths, computed):
    mask = torch.arange(3) < torch.tensor(lengths).unsqueeze(1)
    batch = {"advantages": torch.tensor(advantages), "completion_mask": mask.long()}
    assert rows_with_gradient(batch).nonzero().flatten().tolist() == computed


RUNS = {
    "TRL": {},
    "TRL's KL": {"loss_type": "grpo", "beta": 0.2},
    "k2": {"loss_type": "bnpo", "beta": 0.2, "kl_estimator": "k2", "ref_reset_every": 2},
    "k3 of old": {"loss_type": "dr_grpo", "beta_old": 0.2},
    "k1 of base": {"beta_base": 0.2, "kl_estimator": "k1", "use_bias_correction_kl": True},
    "k3 corrected": {"loss_type": "cispo", "beta": 0.2, "beta_old": 0.1, "use_bias_correction_kl": True},
    "sequence ratio": {"loss_type": "luspo", "beta_old": 0.2, "importance_sampling_level": "sequence"},
    "clamp": {"loss_type": "sapo", "beta": 0.2, "kl_clamp": 10.0, "use_bias_correction_kl": True},
    "vespo": {"loss_type": "vespo", "beta": 0.2, "ref_compute": "naive_epoch", "ref_reset_every": 2},
    "in the reward": {"beta": 0.2, "kl_in": "reward", "advantage_estimator": "rloo"},
    "packed": {"beta": 0.2, "pack_groups": "on", "reuse_old_logps": True, "skip_zero_rows": True},
    "trust region": {"beta_old": 0.2, "trust_region": "m2po", "trust_region_threshold": 1e-6},
    "off-policy mask": {"beta_old": 0.2, "off_policy_mask_threshold": 0.5, "loss_mode": "no_ratio"},
}


@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_a_run_is_the_same_whatever_is_scored_where_nothing_counts(make_trainer, shifted, largest_difference, keys):
    keys = {"cls": LastTokenIsATools, "max_steps": 2, "max_completion_length": 8, **keys}
    plain = make_trainer(**keys)
    plain.train()
    extreme = make_trainer(**keys)
    extreme._compare_scores = lambda: None  # of rows in which every token counts
    shifted()
    extreme.train()
    assert largest_difference(plain, extreme) == 0.0
    assert without_times(read_rows(extreme)) == without_times(read_rows(plain))


def penalty_of(args, batch, logps, level, weights):
    anchors = Anchors(args)
    return (anchors.weighted_sum(anchors.kls(batch, logps, level)) * weights).sum()


def configured(**keys):
    defaults = {"use_cpu": True, "bf16": False, "num_iterations": 2, "beta": 0.1, "beta_old": 0.1, "beta_base": 0.1}
    return ProRLConfig(**{**defaults, "report_to": "none", "num_generations": 4, **keys})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", IMPORTANCE_LEVELS)
@pytest.mark.parametrize("clamp", [None, 10.0])
@pytest.mark.parametrize(
    "estimator, corrected", [("k1", True), ("k2", False), ("k2", True), ("k3", False), ("k3", True)]
)
def test_every_estimator_anchor_and_aggregation(estimator, corrected, clamp, level):
    """Values and gradients at padding, a tool's token and, with `drop_zero_rows`, a row without advantage."""
    keys = {"kl_estimator": estimator, "use_bias_correction_kl": corrected, "kl_clamp": clamp, "drop_zero_rows": True}
    args = configured(**keys)
    torch.manual_seed(0)
    names = ("logps", "old_per_token_logps", "ref_per_token_logps", "base_per_token_logps")
    scored = {name: -torch.rand(3, 4) for name in names}
    batch = {"completion_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]])}
    batch["tool_mask"] = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    batch["advantages"] = torch.tensor([1.0, 0.0, -1.0])
    counts = (batch["completion_mask"] * batch["tool_mask"]).bool() & (batch["advantages"] != 0.0)[:, None]
    for loss_type in LOSS_TYPES:
        weights = token_weights(batch["completion_mask"] * batch["tool_mask"], loss_type, 1.0, 4, 7.0)
        for anchor in ("old", "ref", "base"):
            found = []
            for shift in (0.0, -300.0, -math.inf):
                for moved in ("logps", f"{anchor}_per_token_logps"):
                    given = dict(scored)
                    given[moved] = torch.where(counts, given[moved], given[moved] + shift)
                    logps = given.pop("logps").requires_grad_()
                    penalty = penalty_of(args, {**batch, **given}, logps, level, weights)
                    (gradient,) = torch.autograd.grad(penalty, logps)
                    found.append((penalty.item(), gradient))
            for value, gradient in found:
                assert math.isfinite(value) and value == found[0][0], (loss_type, anchor)
                assert torch.equal(gradient, found[0][1]) and not gradient[~counts].any(), (loss_type, anchor)


def test_advantages_by_token_drop_the_rows_that_have_none():
    """The penalty of a row is dropped if none of its tokens has an advantage, also with as many tokens as rows."""
    args = configured(drop_zero_rows=True)
    logps = torch.tensor([[-1.0, -2.0, -3.0]] * 3)
    batch = {"completion_mask": torch.ones(3, 3, dtype=torch.long), "ref_per_token_logps": logps + 1.0}
    found = []
    for advantages in ([0.5, 0.0, -1.0], [[0.0, 0.5, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 2.0]]):
        given = {**batch, "advantages": torch.tensor(advantages)}
        moved = logps.clone().requires_grad_()
        penalty = penalty_of(args, given, moved, "token", torch.full((3, 3), 1 / 9))
        (gradient,) = torch.autograd.grad(penalty, moved)
        found.append((penalty.item(), gradient))
    (value, gradient), (by_token, of_tokens) = found
    assert by_token == value > 0.0
    assert torch.equal(gradient, of_tokens)
    assert gradient.bool().any(dim=1).tolist() == [True, False, True]


def test_a_mean_of_the_record_leaves_out_what_does_not_count():
    """As the KL of a row that `drop_zero_rows` drops, or a token that vLLM could not score."""
    meter = Meter(torch.device("cpu"))
    meter.begin_step()
    values = torch.tensor([[1.0, math.inf], [math.nan, 3.0]])
    meter.add_means({"kl_ref": values, "kl_old": values + 1}, torch.tensor([[1, 0], [0, 1]]))
    row = meter.end_step(lambda tensor: tensor)
    assert (row["kl_ref"], row["kl_old"]) == (2.0, 3.0)
