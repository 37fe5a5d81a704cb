"""Multiple-choice questions of school physics, chemistry and biology, made from formulas."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Template(NamedTuple):
    """
    One kind of question.

    Attributes:
        text (`str`): the question, to be formatted with the quantities.
        unit (`str`): unit of the answer.
        quantities (`dict[str, tuple[int, ...]]`): possible values by name, in the units that the text names.
        answer (`Callable[..., float]`): the right value.
    """

    text: str
    unit: str
    quantities: dict[str, tuple[int, ...]]
    answer: Callable[..., float]


SMALL = tuple(range(2, 60))
LARGE = tuple(range(10, 500, 5))

# From one step of calculation to two or three; level L of the task uses the first 2 + 2 L.
TEMPLATES = (
    Template(
        "A car covers {s} m in {t} s at constant speed. What is its speed?",
        "m/s",
        {"s": LARGE, "t": SMALL},
        lambda s, t: s / t,
    ),
    Template(
        "A net force of {f} N acts on a mass of {m} kg. What is its acceleration?",
        "m/s²",
        {"f": LARGE, "m": SMALL},
        lambda f, m: f / m,
    ),
    Template(
        "A resistor of {r} ohm is connected to a battery of {u} V. What current flows?",
        "A",
        {"r": LARGE, "u": SMALL},
        lambda r, u: u / r,
    ),
    Template(
        "A block has a mass of {m} g and a volume of {v} cm³. What is its density?",
        "g/cm³",
        {"m": LARGE, "v": SMALL},
        lambda m, v: m / v,
    ),
    Template(
        "A gas is at {c} degrees Celsius. What is its temperature in kelvin?",
        "K",
        {"c": tuple(range(-200, 800))},
        lambda c: c + 273.15,
    ),
    Template(
        "A wave has a frequency of {f} Hz and a wavelength of {w} m. How fast does it travel?",
        "m/s",
        {"f": LARGE, "w": SMALL},
        lambda f, w: f * w,
    ),
    Template(
        "What is the kinetic energy of a mass of {m} kg that moves at {v} m/s?",
        "J",
        {"m": SMALL, "v": SMALL},
        lambda m, v: m * v**2 / 2,
    ),
    Template(
        "A ball falls from rest for {t} s. Without drag and with g = 10 m/s², how far does it fall?",
        "m",
        {"t": tuple(range(1, 100))},
        lambda t: 5 * t**2,
    ),
    Template(
        "Two resistors of {a} ohm and {b} ohm are connected in parallel. What is their total resistance?",
        "ohm",
        {"a": SMALL, "b": SMALL},
        lambda a, b: a * b / (a + b),
    ),
    Template(
        "A radioactive sample of {m} g has a half-life of {h} days. How much of it is left after {n} half-lives?",
        "g",
        {"m": (16, 32, 48, 64, 80, 96, 128, 160), "h": SMALL, "n": (2, 3, 4)},
        lambda m, h, n: m / 2**n,
    ),
    Template(
        "Heating {m} kg of water by {d} K takes how much energy? The specific heat is 4.2 kJ/(kg K).",
        "kJ",
        {"m": SMALL, "d": tuple(range(5, 90, 5))},
        lambda m, d: 4.2 * m * d,
    ),
    Template(
        "A solution of {n} mmol of salt in {v} ml of water is diluted to {k} times its volume. What is its "
        "concentration?",
        "mol/l",
        {"n": LARGE, "v": LARGE, "k": (2, 4, 5)},
        lambda n, v, k: n / (v * k),
    ),
    Template(
        "A gas fills {v} l at {p} kPa. At the same temperature, what is its volume at {q} kPa?",
        "l",
        {"v": SMALL, "p": (50, 80, 100, 120), "q": (150, 200, 250, 400)},
        lambda v, p, q: v * p / q,
    ),
    Template(
        "A lens has a focal length of {f} cm. An object stands {k} focal lengths in front of it. How far behind the "
        "lens is its image?",
        "cm",
        {"f": tuple(range(5, 60)), "k": (2, 3, 4, 5)},
        lambda f, k: f * k / (k - 1),
    ),
    Template(
        "Two plants that are heterozygous for {n} unlinked genes are crossed, and there are {m} offspring. How many "
        "of them are expected to show the recessive trait in every one of these genes?",
        "plants",
        {"n": (1, 2, 3), "m": tuple(range(64, 6400, 64))},
        lambda n, m: m / 4**n,
    ),
    Template(
        "A body of {m} kg is lifted by {h} m in {t} s. With g = 10 m/s², what is the mean power?",
        "W",
        {"m": SMALL, "h": SMALL, "t": (2, 4, 5, 8)},
        lambda m, h, t: 10 * m * h / t,
    ),
    Template(
        "{m} g of methane, CH4 (16 g/mol), burn completely. What mass of water, H2O (18 g/mol), forms?",
        "g",
        {"m": tuple(range(8, 4000, 8))},
        lambda m: m / 16 * 2 * 18,
    ),
    Template(
        "A stone is thrown straight up at {v} m/s. Without drag and with g = 10 m/s², how high is it after {t} s?",
        "m",
        {"v": tuple(range(30, 80)), "t": (1, 2, 3, 4, 5)},
        lambda v, t: v * t - 5 * t**2,
    ),
)


def shown(value: float, unit: str) -> str:
    """A quantity with four significant digits."""
    return f"{float(f'{value:.4g}'):.10g} {unit}"


def varied(rng: Random, template: Template, base: dict[str, int]) -> dict[str, int]:
    """The quantities with a new draw of one of them."""
    name = rng.choice(list(template.quantities))
    return {**base, name: rng.choice(template.quantities[name])}


def sample_question(rng: Random, level: int, num_choices: int) -> tuple[str, list[str], int]:
    """
    Text, choices (all different) and the place of the right one; level 1 to 8. Each choice is the right answer of a
    question of this kind, and the question is drawn from these at the end. So the choices alone say nothing. Wrong
    values derived from the right value, by a mistake or a factor, would give it away as the value that the others have
    in common.
    """
    template = rng.choice(TEMPLATES[: 2 + 2 * level])
    base = {name: rng.choice(options) for name, options in template.quantities.items()}
    questions: dict[str, dict[str, int]] = {}
    while len(questions) < num_choices:
        values = varied(rng, template, base)
        questions.setdefault(shown(template.answer(**values), template.unit), values)
    choices = list(questions)
    rng.shuffle(choices)
    place = rng.randrange(num_choices)
    return template.text.format(**questions[choices[place]]), choices, place
