"""
The algorithm's state in files, apart from the engine that computes it: see docs/interchange.md.

`export_update` writes the rollout and the inputs of a trainer's next update, `import_update` reads the outputs of an
engine.
"""

from .live import export_update, import_update
from .schemas import Rollout, UpdateInputs, UpdateOutputs
from .update_folder import read, write


__all__ = ["Rollout", "UpdateInputs", "UpdateOutputs", "export_update", "import_update", "read", "write"]
