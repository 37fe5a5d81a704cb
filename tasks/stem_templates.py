"""Multiple-choice questions of school physics, chemistry and biology, made from formulas."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Template(NamedTuple):
    """
    One kind of question.

    Attributes:
        text (`str`): the question, to be formatted with the quantities.
        unit (`str`): of the answer.
        quantities (`dict[str, tuple[int, ...]]`): values to choose from, by name; in the units that the text names.
        answer (`Callable[..., float]`): the right value.
        mistakes (`tuple[Callable[..., float], ...]`): what usual mistakes lead to.
    """

    text: str
    unit: str
    quantities: dict[str, tuple[int, ...]]
    answer: Callable[..., float]
    mistakes: tuple[Callable[..., float], ...]


SMALL = tuple(range(2, 60))
LARGE = tuple(range(10, 500, 5))

# From one step to two or three; level L of the task uses the first 2 + 2 L.
TEMPLATES = (
    Template(
        "A car covers {s} m in {t} s at constant speed. What is its speed?",
        "m/s",
        {"s": LARGE, "t": SMALL},
        lambda s, t: s / t,
        (lambda s, t: s * t, lambda s, t: t / s, lambda s, t: s - t, lambda s, t: s / t / 2),
    ),
    Template(
        "A net force of {f} N acts on a mass of {m} kg. What is its acceleration?",
        "m/s²",
        {"f": LARGE, "m": SMALL},
        lambda f, m: f / m,
        (lambda f, m: f * m, lambda f, m: m / f, lambda f, m: f / m / 9.8, lambda f, m: f + m),
    ),
    Template(
        "A resistor of {r} ohm is connected to a battery of {u} V. What current flows?",
        "A",
        {"r": LARGE, "u": SMALL},
        lambda r, u: u / r,
        (lambda r, u: u * r, lambda r, u: r / u, lambda r, u: u * u / r, lambda r, u: u + r),
    ),
    Template(
        "A block has a mass of {m} g and a volume of {v} cm³. What is its density?",
        "g/cm³",
        {"m": LARGE, "v": SMALL},
        lambda m, v: m / v,
        (lambda m, v: v / m, lambda m, v: m * v, lambda m, v: m - v, lambda m, v: 1000 * m / v),
    ),
    Template(
        "A gas is at {c} degrees Celsius. What is its temperature in kelvin?",
        "K",
        {"c": tuple(range(-200, 800))},
        lambda c: c + 273.15,
        (lambda c: c - 273.15, lambda c: 1.8 * c + 32, lambda c: 273.15 - c, lambda c: c + 373.15),
    ),
    Template(
        "A wave has a frequency of {f} Hz and a wavelength of {w} m. How fast does it travel?",
        "m/s",
        {"f": LARGE, "w": SMALL},
        lambda f, w: f * w,
        (lambda f, w: f / w, lambda f, w: w / f, lambda f, w: f + w, lambda f, w: f * w / 2),
    ),
    Template(
        "What is the kinetic energy of a mass of {m} kg that moves at {v} m/s?",
        "J",
        {"m": SMALL, "v": SMALL},
        lambda m, v: m * v**2 / 2,
        (lambda m, v: m * v**2, lambda m, v: m * v / 2, lambda m, v: m * v, lambda m, v: m**2 * v / 2),
    ),
    Template(
        "A ball falls from rest for {t} s. Without drag and with g = 10 m/s², how far does it fall?",
        "m",
        {"t": tuple(range(1, 100))},
        lambda t: 5 * t**2,
        (lambda t: 10 * t**2, lambda t: 10 * t, lambda t: 5 * t, lambda t: 20 * t**2),
    ),
    Template(
        "Two resistors of {a} ohm and {b} ohm are connected in parallel. What is their total resistance?",
        "ohm",
        {"a": SMALL, "b": SMALL},
        lambda a, b: a * b / (a + b),
        (
            lambda a, b: a + b,
            lambda a, b: (a + b) / 2,
            lambda a, b: 1 / a + 1 / b,
            lambda a, b: (a + b) / (a * b) * 10,
        ),
    ),
    Template(
        "A radioactive sample of {m} g has a half-life of {h} days. How much of it is left after {n} half-lives?",
        "g",
        {"m": (16, 32, 48, 64, 80, 96, 128, 160), "h": SMALL, "n": (2, 3, 4)},
        lambda m, h, n: m / 2**n,
        (lambda m, h, n: m / (2 * n), lambda m, h, n: m - m / 2**n, lambda m, h, n: m / n, lambda m, h, n: m / h),
    ),
    Template(
        "Heating {m} kg of water by {d} K takes how much energy? The specific heat is 4.2 kJ/(kg K).",
        "kJ",
        {"m": SMALL, "d": tuple(range(5, 90, 5))},
        lambda m, d: 4.2 * m * d,
        (lambda m, d: m * d / 4.2, lambda m, d: 4.2 * d / m, lambda m, d: m * d, lambda m, d: 4.2 * (m + d)),
    ),
    Template(
        "A solution of {n} mmol of salt in {v} ml of water is diluted to {k} times its volume. What is its concentration?",
        "mol/l",
        {"n": LARGE, "v": LARGE, "k": (2, 4, 5)},
        lambda n, v, k: n / (v * k),
        (
            lambda n, v, k: n / v,
            lambda n, v, k: n * k / v,
            lambda n, v, k: v * k / n,
            lambda n, v, k: n * v / (1000 * k),
        ),
    ),
    Template(
        "A gas fills {v} l at {p} kPa. At the same temperature, what is its volume at {q} kPa?",
        "l",
        {"v": SMALL, "p": (50, 80, 100, 120), "q": (150, 200, 250, 400)},
        lambda v, p, q: v * p / q,
        (
            lambda v, p, q: v * q / p,
            lambda v, p, q: v,
            lambda v, p, q: v + (q - p) / 100,
            lambda v, p, q: p * q / v / 100,
        ),
    ),
    Template(
        "A lens has a focal length of {f} cm. An object stands {k} focal lengths in front of it. How far behind the lens is "
        "its image?",
        "cm",
        {"f": tuple(range(5, 60)), "k": (2, 3, 4, 5)},
        lambda f, k: f * k / (k - 1),
        (lambda f, k: f * k, lambda f, k: f * k / (k + 1), lambda f, k: f / k, lambda f, k: f * (k - 1)),
    ),
    Template(
        "Two plants that are heterozygous for {n} unlinked genes are crossed, and there are {m} offspring. How many of them "
        "are expected to show the recessive trait in every one of these genes?",
        "plants",
        {"n": (1, 2, 3), "m": tuple(range(64, 6400, 64))},
        lambda n, m: m / 4**n,
        (lambda n, m: m * 3**n / 4**n, lambda n, m: m / 2**n, lambda n, m: m / (4 * n + 1), lambda n, m: m - m / 4**n),
    ),
    Template(
        "A body of {m} kg is lifted by {h} m in {t} s. With g = 10 m/s², what is the mean power?",
        "W",
        {"m": SMALL, "h": SMALL, "t": (2, 4, 5, 8)},
        lambda m, h, t: 10 * m * h / t,
        (
            lambda m, h, t: 10 * m * h,
            lambda m, h, t: m * h / t,
            lambda m, h, t: 10 * m * h * t,
            lambda m, h, t: 10 * m / t,
        ),
    ),
    Template(
        "{m} g of methane, CH4 (16 g/mol), burn completely. What mass of water, H2O (18 g/mol), forms?",
        "g",
        {"m": tuple(range(8, 4000, 8))},
        lambda m: m / 16 * 2 * 18,
        (lambda m: m / 16 * 18, lambda m: 2 * m, lambda m: m / 18 * 2 * 16, lambda m: m / 16 * 44),
    ),
    Template(
        "A stone is thrown straight up at {v} m/s. Without drag and with g = 10 m/s², how high is it after {t} s?",
        "m",
        {"v": tuple(range(30, 80)), "t": (1, 2, 3, 4, 5)},
        lambda v, t: v * t - 5 * t**2,
        (lambda v, t: v * t - 10 * t**2, lambda v, t: v * t + 5 * t**2, lambda v, t: v * t, lambda v, t: v - 10 * t),
    ),
)


def shown(value: float, unit: str) -> str:
    """A quantity with four significant digits."""
    return f"{float(f'{value:.4g}'):.10g} {unit}"


def sample_question(rng: Random, level: int, num_choices: int) -> tuple[str, list[str], int]:
    """Text, choices (all different) and the place of the right one; level 1 to 8."""
    template = rng.choice(TEMPLATES[: 2 + 2 * level])
    while True:
        values = {name: rng.choice(options) for name, options in template.quantities.items()}
        right = shown(template.answer(**values), template.unit)
        wrong = [shown(mistake(**values), template.unit) for mistake in template.mistakes]
        # Factors of ten and two are mistakes of any calculation.
        wrong += [shown(factor * template.answer(**values), template.unit) for factor in (10, 0.1, 2, 0.5, 4, 0.25)]
        different = [choice for choice in dict.fromkeys(wrong) if choice != right]
        if len(different) >= num_choices - 1:
            choices = [right, *rng.sample(different, num_choices - 1)]
            rng.shuffle(choices)
            return template.text.format(**values), choices, choices.index(right)
