"""Samples of a run's models on held-out prompts: kept on disk, drawn only if missing."""
