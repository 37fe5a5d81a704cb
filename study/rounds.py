"""Rejection sampling in three rounds: `trained_by: study.rounds`, with the recipe of [`study.fine_tuning`]."""

import sys

from study.fine_tuning import main


ROUNDS = 3


if __name__ == "__main__":
    sys.exit(main(ROUNDS))
