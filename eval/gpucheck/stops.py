"""Right: NaN stops a run before an update makes it worse, and the message says where it was."""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from trl_prorl.errors import NonFiniteError
from trl_prorl.eval.gpucheck.process import last_words, run_apart
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.runs import make_run
from trl_prorl.eval.gpucheck.size import SIZES, Size
from trl_prorl.eval.gpucheck.training import lines


STEP = 3
COMPACT = {"compact_generation": "on", "pack_groups": "on"}
# On a GPU `torch.multinomial` of NaN is an assertion, after which a process computes nothing more: its case is last.
CASES = {  # the parameter that is spoiled, whether its gradient alone, the run's keys, and a part of the message
    "NaN in the reference": (".q_proj.lora_B.ref", False, {}, "log-probabilities of the reference"),
    "NaN in a gradient": ("layers.1.self_attn.v_proj.lora_B.default", True, {}, "gradient of base_model"),
    "NaN in the base, sampled compactly": ("layers.0.mlp.down_proj.base", False, COMPACT, "probabilities of the next"),
    "NaN in the base, sampled by generate": ("layers.0.mlp.down_proj.base", False, {}, "probabilities of the next"),
}
LIMIT = 90.0


class Spoil(TrainerCallback):
    """NaN in a parameter, or in its next gradient, when a step begins."""

    def __init__(self, part: str, gradient: bool):
        self.part, self.gradient = part, gradient

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 != STEP:
            return
        param = next(param for name, param in model.named_parameters() if self.part in name)
        if self.gradient:
            handle = param.register_hook(lambda gradient: (handle.remove(), gradient * math.nan)[1])
        else:
            with torch.no_grad():
                param.view(-1)[3] = math.nan


def spoiled_runs(size_name: str, folder: str) -> None:
    """Every case's run, each in a folder of its number."""
    for number, case in enumerate(CASES):
        spoiled_run(size_name, case, str(Path(folder, str(number))))


def spoiled_run(size_name: str, case: str, out: str) -> None:
    """A run that meets NaN; what it says goes to a file, because a GPU that met it may be of no more use."""
    part, gradient, keys, _ = CASES[case]
    trainer = make_run(
        SIZES[size_name], Path(out), {"beta": 0.1, "ref_reset_every": 100} | keys, callbacks=[Spoil(part, gradient)]
    )
    said = "the run went on"
    try:
        trainer.train()
    except NonFiniteError as error:
        said = str(error)
    except Exception as error:  # of whatever kind: it is the finding
        said = f"{type(error).__name__}: {error}"
    Path(out, "said.json").write_text(json.dumps({"said": said}) + "\n")
    sys.stdout.flush()


def stops(size: Size, folder: Path) -> Result:
    """All cases in a process of their own, which the last one spoils on a GPU."""
    result = Result()
    log = folder / "stops.log"
    run_apart(spoiled_runs, (size.name, str(folder)), log, LIMIT, fork=not size.on_card)
    for number, (case, (_, _, _, expected)) in enumerate(CASES.items()):
        out = folder / str(number)
        file = out / "said.json"
        said = json.loads(file.read_text())["said"] if file.exists() else last_words(log)
        rows = len(lines(out / "metrics.jsonl"))
        right = f"at step {STEP}: " in said and expected in said and rows == STEP - 1
        result.check(case, right, f"{rows} steps in the record, by hand {STEP - 1}; {said[:200]}")
    return result
