"""Guards: what a run does about NaN, a policy that has collapsed and a reward that is gamed."""
