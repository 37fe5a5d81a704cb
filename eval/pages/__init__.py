"""The report: a file per section, and the tables, panels and documents that sections consist of."""
