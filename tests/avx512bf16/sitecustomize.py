"""
On `PYTHONPATH`: makes bitsandbytes take this CPU for one with AVX512-BF16. It makes the file that `ASKED` names, so
that a test which does not see the hint on stderr knows that bitsandbytes was asked.
"""

import importlib.util
import os
import sys
from pathlib import Path


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "bitsandbytes.functional":
            return None
        sys.meta_path.remove(Finder)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            module.has_avx512bf16 = has_avx512bf16

        spec.loader.exec_module = patched
        return spec


def has_avx512bf16():
    Path(os.environ["ASKED"]).write_text("yes")
    return True


sys.meta_path.insert(0, Finder)
