"""`doc_pages.py` is beside the tests that import it."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))
