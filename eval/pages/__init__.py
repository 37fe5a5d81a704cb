"""The report: a file for each section, and the tables, panels and documents that the sections are made of."""
