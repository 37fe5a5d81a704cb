"""The run on disk: its record, whole checkpoints, exact resume, and the guards that stop it."""
