"""Compute numbers from arrays and run data. Nothing here reads a file, draws a plot or writes a page."""
