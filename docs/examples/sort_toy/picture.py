"""The picture: the expected reward of every run, and below it the loss."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .problem import DELTAS, LOSS, LOSSES, REWARD, label


# Paul Tol's bright palette, safe for colour-blind readers.
COLOUR_OF_DELTA = dict(zip(DELTAS, ("#66CCEE", "#4477AA", "#228833", "#AA3377"), strict=True))
# The variants have the colours that they have everywhere in this project.
STYLE_OF_VARIANT = {
    "plain": ("#000000", "-"),
    "control": ("#E69F00", "-"),
    "A": ("#0072B2", "-"),
    "B": ("#D55E00", "-"),
    "C hard": ("#009E73", "-"),
    "C soft": ("#009E73", "--"),
    "C asym": ("#009E73", "-."),
    "C step": ("#009E73", ":"),
}


def picture(
    of_grid: Mapping[tuple[str, str, str], np.ndarray], of_variants: Mapping[str, np.ndarray], seeds: int, reward: str
) -> Figure:
    """
    A column for each loss with its deltas, and one for the variants.

    Args:
        of_grid (`Mapping[tuple[str, str, str], np.ndarray]`):
            Means over the seeds, by loss, delta and variant.
        of_variants (`Mapping[str, np.ndarray]`):
            Means over the seeds, by variant.
        seeds (`int`):
            Their number.
        reward (`str`):
            The reward's name.
    """
    figure = Figure(figsize=(15, 7), layout="constrained")
    axes = figure.subplots(2, len(LOSSES) + 1, sharex=True, sharey="row")
    for column, loss in enumerate(LOSSES):
        axes[0, column].set_title(f"{loss} loss")
        for (of_loss, delta, variant), curves in of_grid.items():
            if of_loss == loss:
                _draw(axes[:, column], curves, color=COLOUR_OF_DELTA[delta], linestyle="--" if variant == "A" else "-")
    axes[0, -1].set_title("anchors and resets")
    for name, curves in of_variants.items():
        colour, dashes = STYLE_OF_VARIANT[name]
        _draw(axes[:, -1], curves, color=colour, linestyle=dashes, label=label(name))
    for panel in axes.flat:
        panel.grid(alpha=0.3)
    for panel in axes[1]:
        panel.set_xlabel("epoch")
        panel.set_yscale("symlog", linthresh=0.1)  # linear up to 0.1: raw would flatten the others
    axes[0, 0].set_ylabel(f"expected reward\n({reward})")
    axes[1, 0].set_ylabel("loss\n(linear up to 0.1, then logarithmic)")
    deltas = [Line2D([], [], color=colour, label=delta) for delta, colour in COLOUR_OF_DELTA.items()]
    dashes = [Line2D([], [], color="grey", label="no KL")]
    dashes.append(Line2D([], [], color="grey", linestyle="--", label="KL, reference frozen every 10 epochs"))
    figure.legend(handles=deltas + dashes, ncols=6, fontsize="small", loc="outside lower left")
    figure.legend(handles=axes[0, -1].get_lines(), ncols=4, fontsize="small", loc="outside lower right")
    figure.suptitle(f"Sorting three numbers: {'one seed' if seeds == 1 else f'means over {seeds} seeds'}")
    return figure


def _draw(panels, curves: np.ndarray, **style) -> None:
    epochs = range(1, curves.shape[1] + 1)
    panels[0].plot(epochs, curves[REWARD], linewidth=1.2, **style)
    panels[1].plot(epochs, curves[LOSS], linewidth=1.0, **style)
