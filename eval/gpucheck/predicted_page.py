"""The tables of `docs/gpu/predictions.md`: what is predicted for every card."""

from pathlib import Path

from trl_prorl.eval.gpucheck.cards import CARDS, GIGA, TERA, Card
from trl_prorl.eval.gpucheck.counts import ARMS, Arm, Counts, Rows
from trl_prorl.eval.gpucheck.predictions import (
    GIB,
    LARGE,
    QWEN,
    RECIPE,
    Bound,
    Prediction,
    Work,
    forward_flops,
    packed_forward,
    padded_forward,
    update_flops,
)


COUNTED = Path("tests", "device", "counts.csv")  # in a checkout
PAGE = Path("docs", "gpu", "predictions.md")
MARK = "<!-- Written by `trl-prorl gpu-check --predict`. -->"
LETTERS = {"launches": "L", "bandwidth": "B", "compute": "C"}


def draw_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table, with an empty one below."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)] + [""]


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cards_table() -> list[str]:
    columns = ["card", "products in", "peak, TFLOP/s", "bandwidth, GB/s", "memory, GB", "figures of"]
    rows = []
    for card in CARDS:
        peak = number(card.peak / TERA)
        if card.sampling_peak is not None:
            peak += f"; rollouts in fp32: {number(card.sampling_peak / TERA)}"
        rows.append([card.name, card.dtype, peak, number(card.bandwidth / GIGA), number(card.memory), card.source])
    return draw_table(columns, rows)


def sizes_table() -> list[str]:
    """The sizes from which bytes and FLOP follow."""
    token_flops = 2 * (QWEN.layer_weights + QWEN.head_weights)
    rows = [
        ["parameters", f"{QWEN.parameters:,}", "matrices of 28 layers, embedding, biases, norms"],
        ["weights in bf16", f"{number(2 * QWEN.parameters / GIGA)} GB", "2 bytes each; 4 on a T4"],
        ["one LoRA", f"{QWEN.adapter_weights:,}", "rank × (inputs + outputs) of seven matrices in 28 layers"],
        [
            "cache of a token",
            f"{QWEN.cache_bytes(2):,} bytes",
            "keys and values × 28 layers × 2 heads × 128 × 2 bytes",
        ],
        ["products of a token", f"{number(token_flops / GIGA)} GFLOP", "2 × weights of the layers and of the head"],
        [
            "attention of a token to one before it",
            f"{number(QWEN.attention_flops(1) / 1e6)} MFLOP",
            "4 × 28 layers × 12 heads × 128",
        ],
    ]
    for name, computed in (("padded", padded_forward(RECIPE)), ("packed", packed_forward(RECIPE))):
        forward = forward_flops(QWEN, computed) / TERA
        update = update_flops(QWEN, computed) / TERA
        rows.append(
            [
                f"a micro-batch of 8, {name}",
                f"{computed.tokens:,} tokens",
                f"forward {number(forward)} TFLOP; with the layers' second forward and backward {number(update)}",
            ]
        )
    return draw_table(["", "size", "made of"], rows)


def counts_table(table: Rows) -> list[str]:
    """Launches and waits, which are the same on every card."""
    columns = ["arm", "a token", "scoring, a forward", "a micro-batch", "a batch, beside these", "the optimizer"]
    lines = []
    for column in ("launches", "waits"):
        rows = []
        for arm in ARMS:
            counts = Counts(table, arm)
            token = counts.token_waits() if column == "waits" else counts.token(column).at(QWEN.layers)
            scorings = " + ".join(number(line.at(QWEN.layers)) for line in counts.scorings(column))
            others = [counts.micro_batch(column), counts.batch(column), counts.step(column)]
            row = [arm.name, number(token), scorings or "–", *(number(line.at(QWEN.layers)) for line in others)]
            if column == "waits":
                row += [number(predict(CARDS[0], work, arm, table).waits) for work in (RECIPE, LARGE)]
            rows.append(row)
        more = ["a step of 16 × 8", "a step of 8 × 64"] if column == "waits" else []
        lines += [f"### {column.capitalize()}", "", *draw_table([*columns, *more], rows)]
    return lines


def predict(card: Card, work: Work, arm: Arm, table: Rows) -> Prediction:
    return Prediction(card, QWEN, work, Counts(table, arm))


def show_bound(found: Bound) -> str:
    """Milliseconds, and the letter of what takes longest."""
    return f"{number(1000 * found.seconds)} {LETTERS[found.limit]}"


def work_table(work: Work, table: Rows) -> list[str]:
    """A row for each card and arm."""
    columns = [
        *("card", "arm", "a token of all rows, ms", "a generation batch, s", "a micro-batch, ms"),
        *("a step, s", "of it launch-bound", "peak memory, GiB"),
    ]
    rows = []
    for card in CARDS:
        for arm in ARMS:
            found = predict(card, work, arm, table)
            memory = number(found.memory)
            if found.memory * GIB > card.memory * GIGA:
                memory += ", too much"
            seconds = [number(found.generation), show_bound(found.micro_batch), number(found.step)]
            share = f"{100 * found.launch_share:.0f} %"
            rows.append([card.name, arm.name, show_bound(found.token), *seconds, share, memory])
    return [f"### {work.title}", "", *draw_table(columns, rows)]


def tables(table: Rows) -> str:
    """All tables of the page."""
    lines = ["## The cards", "", *cards_table(), "## The model", "", *sizes_table(), "## Counted", ""]
    lines += [*counts_table(table), "## Predicted", ""]
    for work in (RECIPE, LARGE):
        lines += work_table(work, table)
    return "\n".join(lines).rstrip() + "\n"


def write(root: Path, table: Rows) -> Path:
    """Write the tables below the mark of the page, in a checkout."""
    page = root / PAGE
    head = page.read_text().partition(MARK)[0]
    page.write_text(f"{head}{MARK}\n\n{tables(table)}")
    return page
