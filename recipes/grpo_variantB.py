"""Variant B. `accelerate launch recipes/grpo_variantB.py [RECIPE] [--key value ...]`"""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[1].resolve()))  # this checkout, whichever is installed

from trl_prorl.cli.command_line import main  # noqa: E402


if __name__ == "__main__":
    main(Path(__file__).parent / "tiny" / "variantB.yaml")
