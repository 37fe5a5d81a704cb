"""
Any recipe: `accelerate launch recipes/grpo.py RECIPE [--key value ...]`, as `trl-prorl train RECIPE`.
RECIPE is a file, such as `recipes/gsm8k/variantA.yaml`, or the name of a shipped one: `gsm8k/variantA`.
"""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[1].resolve()))  # this checkout, whichever is installed

from trl_prorl.cli.command_line import main  # noqa: E402


if __name__ == "__main__":
    main()
