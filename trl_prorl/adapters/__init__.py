"""LoRA adapters: initialisations that change the model, and how such adapters are saved and loaded."""
