"""Units that an answer may name: those with a value, and things that are counted."""

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
MADE_OF = {"mph": ("mile", "hour"), "kph": ("km", "hour"), "rpm": ("revolution", "minute"), "mpg": ("mile", "gallon")}
# Words after a number that do not change it.
REMARKS = {"each", "apiece", "total", "altogether"}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
PERCENT = {r"\%", "%", '"percent'}
CURRENCIES = {r"\$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}
IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman"}
UNITS = {name: (name, Fraction(1)) for name in (*COUNTED, "revolution")}
for line in TABLE.split("\n")[1:-1]:
    dimension, size, *names = line.split()
    UNITS |= dict.fromkeys(names, (dimension, Fraction(size)))


def known(word: str) -> str | None:
    """Return the word, or its singular, if it is a unit."""
    word = IRREGULAR.get(word, word)
    for name in (word, word.lower(), word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("s").lower()):
        if (name in UNITS or name in MADE_OF) and (name == word or len(word) > 2):
            return name
    return None


def unit(words: list[str]) -> tuple[Fraction, dict[str, int]] | None:
    r"""
    Read tokens as one unit, such as `km / h`, `"square "feet` or `"cm ^ 2`.

    Returns:
        Its value, and the power of each dimension; `None` if a token is unknown.
    """
    value, powers = Fraction(1), {}
    side, power = 1, 1
    remarks = False
    words = [word.removeprefix('"') for word in words if word not in ("{", "}", ".", r"\cdot")]
    while words:
        word = words.pop(0)
        if word == "-" or word in REMARKS and not words:
            remarks = word in REMARKS
            continue
        if word in ("/", "per", "a", "an", "each", "every"):
            side = -1
            continue
        if word in ("square", "sq", "cubic", "cu") and words and words[0] != "^":
            power = 3 if word.startswith("cu") else 2
            continue
        name = known(word)
        if name is None:
            return None
        if words[:1] == ["^"]:
            exponent = "".join(words[1:3] if words[1:2] == ["-"] else words[1:2])
            if exponent not in ("2", "3", "-1", "-2"):
                return None
            power = int(exponent)
            del words[: len(exponent) + 1]
        top, bottom = MADE_OF.get(name, (name, None))
        for part, direction in ((top, side), (bottom, -side)):
            if part is not None:
                dimension, size = UNITS[part]
                value *= size ** (direction * power)
                powers[dimension] = powers.get(dimension, 0) + direction * power
        power = 1
    return (value, powers) if power == 1 and (powers or remarks) else None
