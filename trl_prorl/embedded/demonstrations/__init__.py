"""What an embedded model is warm-started on: for each task a file with its wrong rules."""

from . import reverse_digits, sorting, sums


# task -> a wrong answer to a row of it, drawn with a generator.
WRONG_ANSWERS = {module.__name__.rpartition(".")[2]: module.wrong_answer for module in (reverse_digits, sorting, sums)}
