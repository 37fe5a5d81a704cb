"""
One GRPO update of a LoRA adapter in two engines: torch, and a NOMA program.

    python docs/examples/noma/update.py exchange                      # write the state before the update
    (cd exchange && noma run ../docs/examples/noma/update.noma)       # compute the update with NOMA
    python docs/examples/noma/update.py exchange --compare            # compute it with torch, and compare

The policy is a table of logits W + s·BA: the column of a token holds the logits of the next one. Its adapter was
trained with rank 2, then grown to rank 3. `exchange/update.safetensors` holds a batch of one group, the adapter and
Adam's state; `exchange/inputs/` holds the same, one tensor per file, as NOMA loads it.
"""

import argparse
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trl_prorl.advantages import estimate
from trl_prorl.extras.growth import draw_rows, migrate_state, random_state, resize
from trl_prorl.kl import importance_ratio, kl_penalty
from trl_prorl.optimizer import reset_optimizer


TREATMENTS = ("keep", "hard", "soft")
TOKENS = 5
COMPLETIONS = 5
LENGTH = 4
# In the order in which update.noma reads them.
SETTINGS = {
    "scale": 2.0,  # of the adapter
    "epsilon": 0.1,  # of the clipped ratio
    "beta_old": 0.1,
    "max_grad_norm": 0.1,
    "lr": 0.05,
    "weight_decay": 0.01,
    "beta1": 0.9,
    "beta2": 0.99,
    "adam_epsilon": 1e-8,
    "alpha": 0.1,  # of soft
}

Tensors = dict[str, torch.Tensor]


def token_logps(
    weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tokens: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the log-probabilities of `tokens[:, 1:]`, shape `(N, T)`, given the tokens before them."""
    logps = torch.log_softmax(weight + scale * b @ a, dim=0)
    return logps[tokens[:, 1:], tokens[:, :-1]]


def make_optimizer(a: torch.nn.Parameter, b: torch.nn.Parameter, settings: dict[str, float]) -> torch.optim.AdamW:
    """Return AdamW over both factors."""
    betas = settings["beta1"], settings["beta2"]
    return torch.optim.AdamW([a, b], settings["lr"], betas, settings["adam_epsilon"], settings["weight_decay"])


def step(optimizer: torch.optim.AdamW, batch: Tensors, settings: dict[str, float]) -> None:
    """Make one update on a batch: clipped loss with advantages of its group, and the KL to the policy that sampled."""
    a, b = optimizer.param_groups[0]["params"]
    mask = batch["mask"]
    logps = token_logps(batch["weight"], a, b, batch["tokens"], settings["scale"])
    advantages = estimate(batch["rewards"], len(batch["rewards"]), "group_normalized").unsqueeze(1)
    ratio = importance_ratio(logps, batch["old_logps"], mask, "token")
    bounded = ratio.clamp(1.0 - settings["epsilon"], 1.0 + settings["epsilon"])
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    penalty = kl_penalty(logps, batch["old_logps"], "k3", ratio)
    loss = ((settings["beta_old"] * penalty - gain) * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([a, b], settings["max_grad_norm"])
    optimizer.step()


def sample(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, generator: torch.Generator) -> Tensors:
    """Sample a group from token 0. A completion ends at token 4; its reward is the share of tokens 1."""
    tokens = torch.zeros(COMPLETIONS, 1, dtype=torch.long)
    probabilities = torch.softmax(weight + SETTINGS["scale"] * b @ a, dim=0).detach()
    for _ in range(LENGTH):
        new = torch.multinomial(probabilities[:, tokens[:, -1]].T, 1, generator=generator)
        tokens = torch.cat([tokens, new], dim=1)
    ended = (tokens == TOKENS - 1).cumsum(dim=1)
    mask = (ended[:, :-1] == 0).double()
    return {
        "weight": weight,
        "tokens": tokens,
        "mask": mask,
        "old_logps": token_logps(weight, a, b, tokens, SETTINGS["scale"]).detach(),
        "rewards": ((tokens[:, 1:] == 1) * mask).mean(dim=1),
    }


def train_and_grow() -> Tensors:
    """Train an adapter of rank 2, grow it to 3, and return the state before the second update on a new batch."""
    generator = random_state(seed=3, step=0)
    weight, a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 5), (2, 5), (5, 2)))
    a, b = torch.nn.Parameter(a), torch.nn.Parameter(0.1 * b)
    optimizer = make_optimizer(a, b, SETTINGS)
    for _ in range(3):
        step(optimizer, sample(weight, a, b, generator), SETTINGS)
    new_rows = draw_rows(1, TOKENS, 3, True, generator)
    for factor, axis, new in ((a, 0, new_rows), (b, 1, None)):
        state = optimizer.state[factor]
        state.update(migrate_state(state, factor.shape, axis, 3))
        factor.grad = None
        factor.data = resize(factor.detach(), axis, 3, new)
    batch = sample(weight, a, b, generator)
    step(optimizer, batch, SETTINGS)  # after it, the policy is no longer the one that sampled
    found = {**batch, "A": a.detach(), "B": b.detach(), "step": optimizer.state[a]["step"].view(1)}
    for name, factor in (("A", a), ("B", b)):
        found[f"m_{name}"] = optimizer.state[factor]["exp_avg"]
        found[f"v_{name}"] = optimizer.state[factor]["exp_avg_sq"]
    return found


def spread(tensors: Tensors, settings: dict[str, float], folder: Path) -> None:
    """
    Write one F64 tensor per file, because NOMA loads the first of a file. It has no gather, so tokens become columns
    of zeros and a one: the flattened batch is `(5, N·T)`.
    """
    tokens = tensors["tokens"]
    rows = torch.arange(len(tokens)).repeat_interleave(tokens.shape[1] - 1)
    inputs = {name: tensor for name, tensor in tensors.items() if name != "tokens"}
    for name, indices, size in (
        ("previous", tokens[:, :-1].flatten(), TOKENS),
        ("next", tokens[:, 1:].flatten(), TOKENS),
        ("row_of_token", rows, len(tokens)),
    ):
        inputs[name] = torch.nn.functional.one_hot(indices, size).T.contiguous()
    for name in ("mask", "old_logps", "rewards"):
        inputs[name] = tensors[name].reshape(1, -1)
    inputs["settings"] = torch.tensor(list(settings.values()), dtype=torch.float64)
    folder.mkdir()
    for name, tensor in inputs.items():
        save_file({name: tensor.double()}, folder / f"{name}.safetensors")


def write(folder: Path) -> None:
    """Write the state before the update into a new folder."""
    folder.mkdir(parents=True)
    tensors = train_and_grow()
    save_file(tensors, folder / "update.safetensors", {name: str(value) for name, value in SETTINGS.items()})
    spread(tensors, SETTINGS, folder / "inputs")


def update(folder: Path) -> Tensors:
    """Compute the update of a folder with torch, once for each treatment of Adam's state."""
    file = folder / "update.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        settings = {name: float(value) for name, value in opened.metadata().items()}
    found = {}
    for treatment in TREATMENTS:
        factors = {name: torch.nn.Parameter(tensors[name].clone()) for name in ("A", "B")}
        optimizer = make_optimizer(*factors.values(), settings)
        for name, factor in factors.items():
            moments = {"exp_avg": tensors[f"m_{name}"].clone(), "exp_avg_sq": tensors[f"v_{name}"].clone()}
            optimizer.state[factor] = {"step": tensors["step"][0].clone(), **moments}
        reset_optimizer(optimizer, treatment, settings["alpha"])
        step(optimizer, tensors, settings)
        for name, factor in factors.items():
            found[f"{treatment}_{name}"] = factor.detach()
            found[f"{treatment}_m_{name}"] = optimizer.state[factor]["exp_avg"]
            found[f"{treatment}_v_{name}"] = optimizer.state[factor]["exp_avg_sq"]
    return found


def differences(folder: Path) -> dict[str, float]:
    """Return, for each treatment, the largest difference between torch's and NOMA's parameters and moments."""
    theirs = load_file(folder / "result.safetensors")
    found = dict.fromkeys(TREATMENTS, 0.0)
    for name, ours in update(folder).items():
        treatment = name.partition("_")[0]
        found[treatment] = max(found[treatment], (ours - theirs[name]).abs().max().item())
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder; with --compare, the one with result.safetensors")
    parser.add_argument("--compare", action="store_true", help="compare NOMA's result with torch's")
    args = parser.parse_args(argv)
    if args.compare:
        for treatment, difference in differences(args.folder).items():
            print(f"{treatment}: largest difference {difference:.1e}")
    elif args.folder.exists():
        parser.error(f"{args.folder} exists: give a new folder")
    else:
        write(args.folder)


if __name__ == "__main__":
    main()
