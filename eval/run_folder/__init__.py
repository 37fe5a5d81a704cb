"""A run's folder, read: its record, and what was measured of it."""
