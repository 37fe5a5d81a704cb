"""Units that an answer may name: those with a value, and things that are counted."""

import re
from collections import Counter
from fractions import Fraction


# Dimension, value, names. A name of more than two letters may have a plural s.
TABLE = """
length 1 m meter metre
length 1/1000000000 nm nanometer
length 1/1000000 μm micrometer
length 1/1000 mm millimeter millimetre
length 1/100 cm centimeter centimetre
length 1/10 dm decimeter
length 1000 km kilometer kilometre
length 127/5000 in inch
length 381/1250 ft foot feet
length 1143/1250 yd yard
length 201168/125 mi mile
time 1 s sec second
time 1/1000 ms millisecond
time 60 min minute
time 3600 h hr hour
time 86400 day
time 604800 week wk
month 1 month
month 12 year yr
mass 1 g gram
mass 1/1000 mg milligram
mass 1000 kg kilogram
mass 1000000 tonne
pound 1 lb pound
pound 1/16 oz ounce
ton 1 ton
volume 1 L l liter litre
volume 1/1000 mL ml milliliter millilitre
gallon 1 gal gallon
gallon 1/4 qt quart
gallon 1/8 pt pint
dollar 1 dollar USD buck
dollar 1/100 cent
euro 1 euro EUR
sterling 1 pound_sterling
rupee 1 rupee
yen 1 yen
angle 1 degree deg
radian 1 radian rad
celsius 1 celsius Celsius
fahrenheit 1 fahrenheit Fahrenheit
kelvin 1 kelvin
newton 1 N newton
joule 1 J joule
joule 1000 kJ kilojoule
watt 1 W watt
watt 1/1000 mW milliwatt
watt 1000 kW kilowatt
watt 1000000 MW megawatt
volt 1 V volt
ampere 1 A amp ampere
ohm 1 ohm
coulomb 1 C coulomb
farad 1 F farad
hertz 1 Hz hertz
hertz 1000 kHz
hertz 1000000 MHz
pascal 1 Pa pascal
pascal 1000 kPa
mole 1 mol mole
calorie 1 cal calorie
byte 1 byte
bit 1 bit
"""
COUNTED = """
unit point student people person child children man men woman women boy girl kid friend adult teacher worker player
member passenger customer guest visitor employee apple orange banana egg cookie cake pie pizza slice piece candy cup
glass bottle bag box basket jar can pack package carton tray bowl plate spoon tablespoon teaspoon serving book page
chapter word letter digit number question problem answer pencil pen marker crayon sticker stamp card coin penny pennies
nickel dime bill ticket marble ball toy doll game block brick tile rock shell bead button flower rose tulip tree
plant seed leaf leaves bird chicken duck cow horse pig sheep goat dog cat kitten puppy puppies fish rabbit animal leg
car bus bike bicycle truck train plane boat ship wheel seat room house floor door window table chair desk shelf shelves
shirt sock shoe hat dress ring necklace way time step move turn trip lap round row column group team set class
classes vertex vertices edge face side triangle square rectangle circle angle diagonal path solution root factor
divisor integer value element subset function term zero sequence permutation combination arrangement choice outcome
possibility possibilities sheet photo picture song movie video vote goal mark gift
present ribbon rope sandwich sandwiches burger muffin cupcake donut doughnut brownie peach peaches pear grape
strawberry strawberries lemon potato tomato carrot onion pumpkin bean nut peanut chocolate loaf loaves roll burrito
taco drink soda bee ant spider insect butterfly butterflies frog turtle snake monkey lion elephant bear
battery batteries balloon candle key nail screw bolt rod stick log plank crate barrel bucket ream notebook folder
paper envelope newspaper magazine poster painting calculator computer phone tablet pool lawn garden farm field acre
city state country countries town village mountain river lake island star planet lightbulb lamp bulb
""".split()
MADE_OF = {"mph": "mile / hour", "kph": "km / hour", "rpm": "revolution / minute", "mpg": "mile / gallon"}
REMARKS = {"each", "apiece", "total", "altogether"}  # words after a number that do not change it
PERCENT = {r"\%", "percent", '"percent'}
CURRENCIES = {r"\$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}
IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman"}
UNITS = {name: (name, Fraction(1)) for name in (*COUNTED, "revolution")}
for line in TABLE.split("\n")[1:-1]:
    dimension, size, *names = line.split()
    UNITS |= dict.fromkeys(names, (dimension, Fraction(size)))
TEMPERATURES = {"coulomb", "farad", "celsius", "fahrenheit"}  # after a degree sign C and F are these
DEGREES = {*"+-/.(){}", r"\frac"}  # all that may stand before a degree sign, with numbers
FACTOR = r"(?:(/|per|a|an|each|every) )?(?:(square|sq|cubic|cu) )?([A-Za-z]+)(?: \^ ([23]))?"


def known(word: str) -> str | None:
    """Return the word, or its singular, if it is a unit."""
    word = IRREGULAR.get(word, word)
    for name in (word, word.lower(), word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("s").lower()):
        if (name in UNITS or name in MADE_OF) and (name == word or len(word) > 2):
            return name
    return None


def read_unit(words: list[str]) -> tuple[Fraction, Counter] | None:
    r"""
    Read words as one unit, such as `km / h`, `square feet` or `cm ^ 2`.

    Returns:
        Its size, and the power of each dimension; `None` if a word is unknown.
    """
    text = " ".join(MADE_OF.get(word, word) for word in words)
    if re.fullmatch(rf"{FACTOR}(?: {FACTOR})*", text) is None:
        return None
    size, powers = Fraction(1), Counter()
    for side, prefix, word, exponent in re.findall(FACTOR, text):
        name = known(word)
        if name is None and word not in REMARKS:
            return None
        if name is not None:
            power = 3 if prefix.startswith("cu") else 2 if prefix else int(exponent or 1)
            unit, value = UNITS[name]
            size *= value ** (-power if side else power)
            powers[unit] += -power if side else power
    return size, powers


def split_unit(tokens: list[str]) -> tuple[list[str], Fraction, Counter]:
    """
    Split the tokens of a quantity.

    Returns:
        The tokens of its value, the size of its unit, and the power of each dimension: none without a unit.
    """
    for token in tokens[:2]:
        if token in CURRENCIES:
            return [part for part in tokens if part != token], Fraction(1), Counter([CURRENCIES[token]])
    if tokens and tokens[-1] in PERCENT:
        return tokens[:-1], Fraction(1), Counter(["percent"])
    if tokens[-2:] == ["^", r"\circ"] and all(token[0].isdigit() or token in DEGREES for token in tokens[:-2]):
        return tokens[:-2], Fraction(1), Counter(["angle"])
    for place in range(1, len(tokens)):
        word = tokens[place].removeprefix('"')
        is_unit = len(word) > 1 and tokens[place - 1][0].isdigit() or len(word) > 3 and tokens[place - 1] in "})"
        if word.isalpha() and (word != tokens[place] or is_unit):
            unit = read_unit([token.removeprefix('"') for token in tokens[place:]])
            if unit is None:
                break
            if TEMPERATURES & unit[1].keys() and tokens[place - 2 : place] == ["^", r"\circ"]:
                place -= 2
            return tokens[:place], *unit
    return tokens, Fraction(1), Counter()
