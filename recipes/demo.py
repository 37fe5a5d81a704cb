"""The demo: `trl-prorl demo` in a checkout. `make demo` runs it."""

import os
import sys
from pathlib import Path


CHECKOUT = str(Path(__file__).parents[1].resolve())  # this one, whichever is installed: here and in the runs it starts
sys.path.insert(0, CHECKOUT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH")]))

from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once  # noqa: E402


if __name__ == "__main__":
    end_at_once(NOTHING_CHANGED)  # until `main` runs

    from trl_prorl.demo import main

    main()
