"""A generation batch: rewards, dynamic sampling, length, interrupted thinking."""
