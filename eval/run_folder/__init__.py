"""Read a run folder: its log files and evaluations."""
