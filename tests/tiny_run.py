"""A training of a test's size: its adapter, its reward, its settings; for the tests and for their processes."""

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SETTINGS = {"num_generations": 4, "max_completion_length": 6, "learning_rate": 5e-3, "seed": 7}
SETTINGS |= {"bf16": False, "gradient_checkpointing": False, "disable_tqdm": True}


def vowels(completions, **columns):
    """A reward that differs within almost every group: the share of bytes below 'g'."""
    texts = [c[-1]["content"] if isinstance(c, list) else c for c in completions]
    return [sum(ord(ch) < 103 for ch in text) / (len(text) + 1) for text in texts]
