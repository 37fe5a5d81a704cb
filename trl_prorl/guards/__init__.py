"""Guards of a run: errors of reward functions, NaN and infinity, weights that do not train."""
