"""What a run leaves: its folder, its log files, its checkpoints."""
