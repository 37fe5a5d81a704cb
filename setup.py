"""What setup.cfg cannot say: the recipes lie beside the packages here, and within `trl_prorl` once installed."""

from setuptools import find_packages, setup


setup(packages=[*find_packages(include=["trl_prorl*", "tasks*", "eval*"]), "trl_prorl.recipes"])
