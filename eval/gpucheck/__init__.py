"""The parts of `trl-prorl gpu-check`, which checks and measures on a GPU; `parts.py` has the list."""
