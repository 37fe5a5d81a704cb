"""The demo: `trl-prorl demo` in a checkout. `make demo` runs it."""

from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once


if __name__ == "__main__":
    end_at_once(NOTHING_CHANGED)  # until `main` runs

    from trl_prorl.demo import main

    main()
