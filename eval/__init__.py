import sys

import trl_prorl  # noqa: F401  before PEFT, see trl_prorl/quiet.py
from trl_prorl.launch.interrupt import NOTHING_CHANGED, end_at_once, is_started_as_module


if is_started_as_module(__name__):
    end_at_once(NOTHING_CHANGED)  # until its `main` runs, see command.py
    from eval.command_lines import first_look

    first_look(sys.orig_argv[sys.orig_argv.index("-m") + 1].partition(".")[2])
