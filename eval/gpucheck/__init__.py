"""What `trl-prorl gpu-check` checks and measures on a GPU: `parts.py` has the list."""
