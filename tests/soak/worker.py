"""One of the processes that `torchrun` starts for processes.py."""

import json
import os
import sys
from pathlib import Path

from processes import Job, train
from stages import Accident


if __name__ == "__main__":
    order = json.loads(Path(sys.argv[1]).read_text())
    if order["accident"] is not None:
        order["accident"] = Accident(**order["accident"])
    status = train(Job(**order), int(os.environ["RANK"]))
    # Torn down by the interpreter, gloo's threads abort the process about once in twenty runs.
    os._exit(status % 256)
