"""Log-probabilities: whose, how cheaply, and how often."""
