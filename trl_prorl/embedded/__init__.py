"""The small bases that come with the package, and models out of GGUF files."""
