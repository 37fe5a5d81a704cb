"""LoRA adapters: initialisations that change the model, how such adapters are saved and loaded; growth of the rank."""
