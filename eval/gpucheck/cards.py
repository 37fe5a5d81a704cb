"""What the maker publishes of the cards for which there is a prediction."""

import re
from dataclasses import dataclass


GIGA = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Card:
    """
    Holds what the maker publishes of a card.

    Attributes:
        name (`str`): Its name.
        pattern (`str`): What its driver's name for it matches.
        bandwidth (`float`): Bytes a second, of its memory.
        peak (`float`): FLOP a second of dense products in `dtype`, summed in fp32.
        memory (`float`): GB.
        source (`str`): Where the figures stand.
        dtype (`str`): That of products in scoring and update.
        weight_bytes (`int`): Of a frozen weight.
        sampling_peak (`float`, *optional*): FLOP a second of the products of a rollout, where that is another dtype.
    """

    name: str
    pattern: str
    bandwidth: float
    peak: float
    memory: float
    source: str
    dtype: str = "bf16"
    weight_bytes: int = 2
    sampling_peak: float | None = None


CARDS = (
    Card(
        "T4",
        r"T4$",
        320 * GIGA,
        65 * TERA,
        16,
        "[T4 datasheet](https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf)",
        dtype="fp16",
        weight_bytes=4,
        sampling_peak=8.1 * TERA,
    ),
    Card(
        "RTX 4090",
        r"RTX 4090$",
        1008 * GIGA,
        165.2 * TERA,
        24,
        "[Ada whitepaper](https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf)",
    ),
    Card(
        "A100 80 GB SXM",
        r"A100-SXM4-80GB",
        2039 * GIGA,
        312 * TERA,
        80,
        "[A100 datasheet](https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf)",
    ),
    Card(
        "H100 SXM",
        r"H100 80GB HBM3",
        3350 * GIGA,
        989.5 * TERA,  # half of the figure with sparsity
        80,
        "[H100 datasheet](https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet)",
    ),
)


def find_card(device: str) -> Card | None:
    """Return the card that a driver calls so; `None` for one without a prediction."""
    return next((card for card in CARDS if re.search(card.pattern, device)), None)
