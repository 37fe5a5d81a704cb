"""Complete checkpoints, and an exact resume from them."""
