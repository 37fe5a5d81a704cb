"""`doc_pages.py` is in the folder of the tests that import it."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))
