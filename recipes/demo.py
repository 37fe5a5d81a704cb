"""The demo: `trl-prorl demo` in a checkout. `make demo` runs it."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[1].resolve()))  # this checkout, whichever is installed

from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once  # noqa: E402


if __name__ == "__main__":
    end_at_once(NOTHING_CHANGED)  # until `main` runs

    from trl_prorl.demo import main

    main()
