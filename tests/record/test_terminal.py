"""What a training shows, by real processes, on a pseudo-terminal and into a file."""

import re

import pytest


SMALL = "--max_steps 4 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --logging_steps 1 "
SMALL += "--ref_reset_every 2 --log_completions true --num_completions_to_print 1 --output_dir run"
ENV = {"COLUMNS": "200", "TERM": "dumb"}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_for_each_log_and_for_each_reset(forks, tmp_path, terminal):
    """On a terminal below transformers' bar, and in a file. What the bar writes over is a line as well."""
    command = f"-m trl_prorl train tiny/variantA {SMALL}".split()
    status, text = forks.run(*command, cwd=tmp_path, env=ENV, terminal=terminal)
    assert status == 0, text
    lines = [line.strip() for line in re.split("[\r\n]+", text)]
    shown = [line[:7] for line in lines if re.match(r"step \d: (reward|loss) ", line)]
    assert shown == ["step 1:", "step 2:", "step 3:", "step 4:"]
    assert len([line for line in lines if line.startswith("step 2: reset, ") and "optimizer keep" in line]) == 1
    assert not [line for line in lines if line.startswith("{")]  # transformers' dict of all metrics
    assert terminal or any("4/4" in line for line in lines)  # its bar; the pseudo-terminal has no width
