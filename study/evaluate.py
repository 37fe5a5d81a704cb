"""
The second half of a run, in a process of its own: held-out samples, drift, rows. It is given the plan that the runner
wrote beside the run's folder:

    python -m study.evaluate runs/study/…/A-seed1-240.json
"""

import json
import sys
import time
from pathlib import Path

from eval import drift, passk
from eval.run_folder.json_files import write_json
from eval.run_folder.reading import load_run
from study.matrix import RunKey
from study.rows import rows_of, stopped_at_nonfinite


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(plan["folder"])
    common = ["--run", str(folder), "--split", plan["split"], "--prompts", str(plan["prompts"])]
    if not stopped_at_nonfinite(load_run(folder)):
        ks = [str(k) for k in (1, 8)]
        failed = passk.main([*common, "--n", str(plan["samples"]), "--k", *ks])
        failed = failed or drift.main([*common, "--samples", str(plan["drift_samples"])])
        if failed:
            return failed
    seconds = time.time() - plan["began"]
    rows = rows_of(
        folder, RunKey(*plan["key"]), plan["recipe_hash"], plan["split"], plan["prompts"], plan["samples"], seconds
    )
    write_json(Path(plan["rows"]), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
