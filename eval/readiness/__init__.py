"""Can a run learn? Its data, its base's samples and its first steps, measured, and what the numbers say."""
