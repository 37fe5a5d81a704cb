"""What `python -m eval.gpu_check` checks and measures on a GPU: `parts.py` has the list."""
