"""
KL estimators between the policy and an anchor: their values and, through autograd, their gradients.

Pure tensors in, tensors out. `logps` are always the policy's log-probabilities of the sampled tokens (with gradient),
`anchor_logps` the anchor's (without gradient), and the estimated quantity is the per-token reverse KL at the visited
states, KL(π_θ(·|s) ‖ π_anchor(·|s)). The KL of whole sequences has one more term, through the states; no estimator
here contains it.

In a loss the *gradient* of an estimator matters, not its value. With samples from π_old and the per-token importance
ratio r = exp(logπ_θ − logπ_old):

| estimator | in the loss alone | multiplied by r ("bias correction") |
|---|---|---|
| k1 | zero expected gradient on-policy: refused | exact per token, on- and off-policy |
| k2 | exact on-policy, biased off-policy | biased |
| k3 | biased | exact per token, on- and off-policy |

With a ratio of whole sequences, no estimator is exact. A bound on the estimate (`kl_clamp`; verl and NeMo RL bound k3
at 10) takes the gradient of the tokens beyond it away. The values are from J. Schulman's note "Approximating KL
Divergence" (2020, http://joschu.net/blog/kl-approx.html); the statements on gradients are checked in
`tests/objective/test_kl.py` by enumerating every completion.
"""

import torch


ESTIMATORS = ("k1", "k2", "k3")


def kl_values(logps: torch.Tensor, anchor_logps: torch.Tensor, estimator: str = "k3") -> torch.Tensor:
    r"""
    Estimate the KL of each token. With \\( d = \log\pi_\theta - \log\pi_{anchor} \\): k1 = d, k2 = d²/2, k3 =
    exp(−d) − 1 + d.

    Args:
        logps, anchor_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probabilities of the sampled tokens under the policy and under the anchor.
        estimator (`str`, *optional*, defaults to `"k3"`): One of [`ESTIMATORS`].

    Returns `torch.Tensor` of shape `(B, T)`: In nats.
    """
    if logps.shape != anchor_logps.shape:
        raise ValueError(f"logps {tuple(logps.shape)} and anchor_logps {tuple(anchor_logps.shape)} differ in shape.")
    if estimator == "k3":
        reverse = anchor_logps - logps
        # In TRL's order of operations, so that the two agree to the last bit.
        return torch.exp(reverse) - reverse - 1
    log_ratio = logps - anchor_logps
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    raise ValueError(f"kl_estimator={estimator!r} is not one of {', '.join(ESTIMATORS)}.")


def beyond_clamp(logps: torch.Tensor, anchor_logps: torch.Tensor, estimator: str, clamp: float) -> torch.Tensor:
    """
    Find the tokens whose estimates lie outside [−clamp, clamp], shape `(B, T)`; arguments as in [`kl_penalty`]. NaN
    does not: it has to be seen.
    """
    return kl_values(logps.detach(), anchor_logps.detach(), estimator).abs() > clamp


def kl_penalty(
    logps: torch.Tensor,
    anchor_logps: torch.Tensor,
    estimator: str = "k3",
    importance_ratio: torch.Tensor | None = None,
    clamp: float | None = None,
) -> torch.Tensor:
    """
    Compute the per-token penalty that enters the loss: the estimate, bounded if asked for, times the importance ratio
    if there is one.

    Args:
        logps (`torch.Tensor` of shape `(B, T)`): The policy's log-probabilities, with gradient.
        anchor_logps (`torch.Tensor` of shape `(B, T)`): The anchor's, whose gradient is cut off.
        estimator (`str`, *optional*, defaults to `"k3"`): One of [`ESTIMATORS`].
        importance_ratio (`torch.Tensor` of shape `(B, T)` or `(B, 1)`, *optional*):
            π_θ/π_old *with* gradient (TRL's `use_bias_correction_kl`).
        clamp (`float`, *optional*): The bound of the estimate, in nats.

    Returns `torch.Tensor` of shape `(B, T)`.

    A bounded token carries no gradient, through its ratio neither. The ratio's own gradient would have the wrong sign
    where the policy has lost a token that the anchor likes: the whole gradient of k3 · r there is r · log(π/π_anchor),
    which raises the token, and the ratio's share alone, clamp · r, lowers it further.
    """
    anchor_logps = anchor_logps.detach()
    if clamp is None:
        values = kl_values(logps, anchor_logps, estimator)
        return values if importance_ratio is None else values * importance_ratio
    bound = kl_values(logps.detach(), anchor_logps, estimator).clamp(-clamp, clamp)
    beyond = beyond_clamp(logps, anchor_logps, estimator, clamp)
    # Not `Tensor.clamp`, whose gradient of 0 times an exponential that overflowed is NaN.
    logps_within = torch.where(beyond, anchor_logps, logps)
    values = torch.where(beyond, bound, kl_values(logps_within, anchor_logps, estimator))
    if importance_ratio is None:
        return values
    return values * torch.where(beyond, importance_ratio.detach(), importance_ratio)


def importance_ratio(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor, level: str) -> torch.Tensor:
    """
    Compute π_θ/π_old per token, `(B, T)`, or for `level="sequence"` its geometric mean over a sequence, `(B, 1)`
    (GSPO, arXiv 2507.18071), with gradient in θ. All arguments have shape `(B, T)`; the mask is 1 where a token
    counts.
    """
    log_ratio = logps - old_logps.detach()
    if level == "token":
        return torch.exp(log_ratio)
    if level == "sequence":
        tokens = mask.sum(-1, keepdim=True).clamp(min=1.0)
        mean = (log_ratio * mask).sum(-1, keepdim=True) / tokens
        return torch.exp(mean)
    raise ValueError(f"importance_sampling_level={level!r} is neither 'token' nor 'sequence'.")


def gradient_bias(
    estimator: str, corrected: bool, level: str, on_policy: bool, clamp: float | None = None
) -> str | None:
    """
    Return why the penalty's expected gradient differs from the gradient of the per-token reverse KL.

    Args:
        estimator (`str`): One of [`ESTIMATORS`].
        corrected (`bool`): Whether the estimate is multiplied by the importance ratio.
        level (`str`): The ratio's level, `"token"` or `"sequence"`.
        on_policy (`bool`): Whether π_θ = π_old wherever the penalty is evaluated.
        clamp (`float`, *optional*): The bound of the estimate.

    Returns `str` or `None`: `None` if it does not differ. Raises `ValueError`: nothing is known of the estimator.
    """
    if estimator not in ("k1", "k2", "k3"):  # not `ESTIMATORS`: a new one is to be thought about here
        raise ValueError(f"the gradient of kl_estimator={estimator!r} is not known: say here when it is exact.")
    exact = "kl_estimator: k3, use_bias_correction_kl: true, importance_sampling_level: token"
    if corrected and level == "sequence":
        return f"a sequence-level ratio makes no estimator unbiased; for an unbiased gradient set {exact}"
    if estimator == "k2":
        if corrected:
            return f"k2 times the importance ratio is biased on- and off-policy; for an unbiased gradient set {exact}"
        if not on_policy:
            return f"k2 is unbiased on-policy only; for an unbiased gradient set {exact}"
        return _clamp_bias(clamp)
    if not corrected:
        return f"{estimator} without use_bias_correction_kl is biased; for an unbiased gradient set {exact}"
    return _clamp_bias(clamp)


def _clamp_bias(clamp: float | None) -> str | None:
    return None if clamp is None else f"tokens whose KL exceeds kl_clamp={clamp} get no gradient from it"
