"""A run whose resets never came is the control, and everything that names it says so; when: test_resets.py."""

import pytest
from rich.console import Console
from run_record import write_run

from eval.analysis.compare import pair_notes
from eval.analysis.configurations import configuration_labels
from eval.analysis.frame import Frame
from eval.pages.arms import lead
from eval.pages.runs import learning_table
from eval.run_folder.reading import load_run
from trl_prorl.hub.card import model_card
from trl_prorl.variants import NEVER_RESET, without_reset


@pytest.mark.parametrize(
    "variant, config, applied, steps, said",
    [
        ("A", {"max_steps": 40}, 0, 40, "never reset: it is the control"),
        ("C", {"max_steps": 40}, 0, 41, "never reset: it is the control"),
        ("optimizer-only", {"max_steps": 40}, 0, 40, "never reset: it is the control"),
        ("A", {"max_steps": 40}, 0, 39, "has not been reset yet"),
        ("A", {"max_steps": 40}, 0, None, "has not been reset yet"),
        ("A", {}, 0, 40, "has not been reset"),  # trained by epochs: when it ends is not on record
        ("A", {"max_steps": 40}, 1, 40, None),
        ("A", {"max_steps": 40}, None, 40, None),
        ("control", {"max_steps": 40}, 0, 40, None),
        ("B", {"max_steps": 40}, 0, 40, None),
        ("elastic", {"max_steps": 40}, 0, 40, None),
    ],
)
def test_what_is_said(variant, config, applied, steps, said):
    assert without_reset(variant, config, applied, steps) == said


PASSK = {
    "split": "test", "prompts": 2, "n": 2, "k": [1], "temperature": 1.0, "seed": 0, "task": "sorting", "level": 3,
    **{side: {"pass@1": 0.5, "interval@1": [0.0, 1.0], "correct": [1, 1]} for side in ("base", "trained")},
}  # fmt: skip


def folder(root, name, variant, steps, resets=0):
    keys = {"model_name_or_path": "tiny", "task": "sorting", "max_steps": 4, "ref_reset_every": 4}
    # A resume is an event as well, and no reset.
    events = [{"event": "resume", "step_requested": 1, "step_applied": 1}]
    events += [{"event": "reset", "step_requested": 2, "step_applied": 2, "reason": "periodic"}] * resets
    rows = [{"step": step + 1} for step in range(steps)]
    return write_run(root / name, keys, rows, events, env={"variant": variant, "seed": 0}, passk=PASSK)


@pytest.mark.parametrize("steps, resets", [(4, 0), (3, 0), (4, 1)])
def test_compare_report_and_card_say_it(tmp_path, steps, resets):
    path = folder(tmp_path, "arm", "A", steps, resets)
    a, control = load_run(path), load_run(folder(tmp_path, "other", "control", 4))
    said = None if resets else NEVER_RESET if steps == 4 else "has not been reset yet"
    pages = {
        "compare": " ".join(pair_notes(a, control)),
        "lead": " ".join(text.markdown for text in lead([a, control])),
        "card": model_card(path).text,
    }
    for page, text in pages.items():
        assert (said in text) if said else ("reset: it is" not in text and "not been reset" not in text), (page, text)
    assert ("a reference that is reset" in pages["lead"]) == (resets > 0)
    assert configuration_labels([[a], [control]])[0] == ("A (never reset)" if said == NEVER_RESET else "A")
    console = Console(width=300, record=True)
    console.print(learning_table(Frame([a, control])).to_rich())
    assert ("KL to moving reference" in console.export_text()) == (resets > 0)
