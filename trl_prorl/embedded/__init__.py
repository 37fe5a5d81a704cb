"""The small bases that come with the package, and how one is made."""
