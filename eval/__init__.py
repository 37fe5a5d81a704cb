import sys

import trl_prorl  # noqa: F401  before PEFT, see trl_prorl/quiet.py
from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once, is_started_as_module
from trl_prorl.short_names import be_one_module


if __name__ == "eval":
    be_one_module(__name__)
elif is_started_as_module("eval"):
    end_at_once(NOTHING_CHANGED)  # until its `main` runs, see command.py
    from trl_prorl.eval.command_lines import check_arguments

    check_arguments(sys.orig_argv[sys.orig_argv.index("-m") + 1].rpartition("eval.")[2])
