"""What setup.cfg cannot say: `tasks`, `eval`, `recipes` and more lie beside `trl_prorl` here, within it in a wheel."""

import sys

from setuptools import find_packages, setup


beside = find_packages(include=["tasks*", "eval*"])
within = [f"trl_prorl.{name}" for name in [*beside, "accelerate_configs", "recipes"]]
# A checkout keeps its own names too, see trl_prorl/short_names.py.
short = beside if "editable_wheel" in sys.argv else []
setup(packages=[*find_packages(include=["trl_prorl*"]), *within, *short])
