import trl_prorl  # noqa: F401  before PEFT, see trl_prorl/quiet.py
from trl_prorl.launch.interrupt import NOTHING_CHANGED, end_at_once, is_started_as_module


if is_started_as_module(__name__):
    end_at_once(NOTHING_CHANGED)  # until its `main` runs, see command.py
