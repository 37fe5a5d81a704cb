"""Resets: when one is requested, and what it does to the reference, the optimizer and the learning rate."""
