"""Multiple-choice questions of school physics, chemistry and biology, generated from formulas."""

from collections.abc import Callable
from random import Random


class Formula:
    """
    The correct answer to one kind of question.

    Args:
        unit (`str`): unit of the answer.
        answer (`Callable[..., float]`): computes the correct value.
        quantities (`tuple[int, ...]`): possible values by name, in the units of the text.
    """

    def __init__(self, unit: str, answer: Callable[..., float], **quantities: tuple[int, ...]):
        self.unit = unit
        self.answer = answer
        self.quantities = quantities


SMALL = tuple(range(2, 60))
LARGE = tuple(range(10, 500, 5))

# Format strings for the quantities, from one step of calculation to two or three. Level L uses the first 2 + 2 L.
TEMPLATES = {
    "A car covers {s} m in {t} s at constant speed. What is its speed?": Formula(
        "m/s", lambda s, t: s / t, s=LARGE, t=SMALL
    ),
    "A net force of {f} N acts on a mass of {m} kg. What is its acceleration?": Formula(
        "m/s²", lambda f, m: f / m, f=LARGE, m=SMALL
    ),
    "A resistor of {r} ohm is connected to a battery of {u} V. What current flows?": Formula(
        "A", lambda r, u: u / r, r=LARGE, u=SMALL
    ),
    "A block has a mass of {m} g and a volume of {v} cm³. What is its density?": Formula(
        "g/cm³", lambda m, v: m / v, m=LARGE, v=SMALL
    ),
    "A gas is at {c} degrees Celsius. What is its temperature in kelvin?": Formula(
        "K", lambda c: c + 273.15, c=tuple(range(-200, 800))
    ),
    "A wave has a frequency of {f} Hz and a wavelength of {w} m. How fast does it travel?": Formula(
        "m/s", lambda f, w: f * w, f=LARGE, w=SMALL
    ),
    "What is the kinetic energy of a mass of {m} kg that moves at {v} m/s?": Formula(
        "J", lambda m, v: m * v**2 / 2, m=SMALL, v=SMALL
    ),
    "A ball falls from rest for {t} s. Without drag and with g = 10 m/s², how far does it fall?": Formula(
        "m", lambda t: 5 * t**2, t=tuple(range(1, 100))
    ),
    "Two resistors of {a} ohm and {b} ohm are connected in parallel. What is their total resistance?": Formula(
        "ohm", lambda a, b: a * b / (a + b), a=SMALL, b=SMALL
    ),
    "A radioactive sample of {m} g has a half-life of {h} days. How much of it is left after {n} half-lives?": Formula(
        "g", lambda m, h, n: m / 2**n, m=(16, 32, 48, 64, 80, 96, 128, 160), h=SMALL, n=(2, 3, 4)
    ),
    "Heating {m} kg of water by {d} K takes how much energy? The specific heat is 4.2 kJ/(kg K).": Formula(
        "kJ", lambda m, d: 4.2 * m * d, m=SMALL, d=tuple(range(5, 90, 5))
    ),
    "A solution of {n} mmol of salt in {v} ml of water is diluted to {k} times its volume. What is its "
    "concentration?": Formula("mol/l", lambda n, v, k: n / (v * k), n=LARGE, v=LARGE, k=(2, 4, 5)),
    "A gas fills {v} l at {p} kPa. At the same temperature, what is its volume at {q} kPa?": Formula(
        "l", lambda v, p, q: v * p / q, v=SMALL, p=(50, 80, 100, 120), q=(150, 200, 250, 400)
    ),
    "A lens has a focal length of {f} cm. An object stands {k} focal lengths in front of it. How far behind the "
    "lens is its image?": Formula("cm", lambda f, k: f * k / (k - 1), f=tuple(range(5, 60)), k=(2, 3, 4, 5)),
    "Two plants that are heterozygous for {n} unlinked genes are crossed, and there are {m} offspring. How many "
    "of them are expected to show the recessive trait in every one of these genes?": Formula(
        "plants", lambda n, m: m / 4**n, n=(1, 2, 3), m=tuple(range(64, 6400, 64))
    ),
    "A body of {m} kg is lifted by {h} m in {t} s. With g = 10 m/s², what is the mean power?": Formula(
        "W", lambda m, h, t: 10 * m * h / t, m=SMALL, h=SMALL, t=(2, 4, 5, 8)
    ),
    "{m} g of methane, CH4 (16 g/mol), burn completely. What mass of water, H2O (18 g/mol), forms?": Formula(
        "g", lambda m: m / 16 * 2 * 18, m=tuple(range(8, 4000, 8))
    ),
    "A stone is thrown straight up at {v} m/s. Without drag and with g = 10 m/s², how high is it after "
    "{t} s?": Formula("m", lambda v, t: v * t - 5 * t**2, v=tuple(range(30, 80)), t=(1, 2, 3, 4, 5)),
}


def written(value: float, unit: str) -> str:
    """Format a quantity with four significant digits."""
    return f"{float(f'{value:.4g}'):.10g} {unit}"


def varied(rng: Random, formula: Formula, base: dict[str, int]) -> dict[str, int]:
    """Return the quantities with one of them drawn again."""
    name = rng.choice(list(formula.quantities))
    return {**base, name: rng.choice(formula.quantities[name])}


def sample_question(rng: Random, level: int, num_choices: int) -> tuple[str, list[str], int]:
    """
    Return text, choices (all different) and the index of the correct choice; level 1 to 8.

    Each choice is the correct answer of a question of this kind, and the question is drawn last. So the choices alone
    do not reveal the answer. Wrong values derived from the correct one, by a mistake or a factor, would reveal it as
    the value that all choices have in common.
    """
    text, formula = rng.choice([*TEMPLATES.items()][: 2 + 2 * level])
    base = {name: rng.choice(options) for name, options in formula.quantities.items()}
    questions: dict[str, dict[str, int]] = {}
    while len(questions) < num_choices:
        values = varied(rng, formula, base)
        questions.setdefault(written(formula.answer(**values), formula.unit), values)
    choices = list(questions)
    rng.shuffle(choices)
    place = rng.randrange(num_choices)
    return text.format(**questions[choices[place]]), choices, place
