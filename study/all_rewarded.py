"""
Rejection sampling on every text with full reward, not on the different ones of a question alone: `trained_by:
study.all_rewarded`, with the recipe of [`study.fine_tuning`]. A text that is drawn often is a demonstration as often.
"""

import sys

from study import fine_tuning


def every_rewarded_text(task, row, texts):
    """Return the texts of a question that get the full reward, with their repetitions."""
    rewards = task.reward_many(texts, [row] * len(texts))
    return [text for text, reward in zip(texts, rewards, strict=True) if reward >= fine_tuning.FULL]


if __name__ == "__main__":
    fine_tuning.paid_texts = every_rewarded_text
    sys.exit(fine_tuning.main())
