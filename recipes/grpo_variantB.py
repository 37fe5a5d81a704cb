"""Variant B. `accelerate launch recipes/grpo_variantB.py [--config RECIPE.yaml] [--key value ...]`"""

from pathlib import Path

from trl_prorl.launch.command_line import main


if __name__ == "__main__":
    main(Path(__file__).parent / "tiny" / "variantB.yaml")
