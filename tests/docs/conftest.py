"""`doc_pages.py` is beside the tests that import it, and the findings of the study are made once."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))

from study_findings import findings  # noqa: E402, F401
