"""`python -m trl_prorl COMMAND ...`, see commands.py."""

import sys

from .commands import main


if __name__ == "__main__":
    sys.exit(main())
