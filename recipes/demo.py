"""`trl-prorl demo` of this checkout. `make demo` runs it."""

import os
import sys
from pathlib import Path


CHECKOUT = str(Path(__file__).parents[1].resolve())  # this one, whichever is installed: here and in the runs it starts
sys.path.insert(0, CHECKOUT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH")]))

from trl_prorl.commands import main  # noqa: E402


if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
