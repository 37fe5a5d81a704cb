"""Samples of a run's models on held-out prompts: drawn where missing, kept on disk."""
