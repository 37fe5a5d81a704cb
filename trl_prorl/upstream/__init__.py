"""The seam with TRL and transformers: what is called, and what is checked of it."""
