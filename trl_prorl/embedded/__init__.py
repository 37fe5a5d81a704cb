"""The small base models that come with the package, and SmolLM2."""
