import trl_prorl  # noqa: F401  before PEFT, see trl_prorl/cli/quiet.py
