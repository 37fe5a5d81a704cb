"""Restores what a zip loses: pip unpacks its links as files that hold the target's path."""

from pathlib import Path

from setuptools import setup


for name in ("accelerate_configs", "eval", "recipes", "tasks"):
    link = Path("trl_prorl", name)
    if not link.is_dir():
        link.unlink(missing_ok=True)
        link.symlink_to(f"../{name}", target_is_directory=True)
setup()
