"""Can a run learn? Measures of its data, its starting model's samples and its first steps, and the findings."""
