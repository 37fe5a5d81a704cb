"""The benchmark of a step: its batches, what it times and counts, its table; no time is asserted."""

import importlib
import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Model

from trl_prorl.run.log_files import JsonLines


SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("bench")
    monkeypatch.setitem(module.SHAPES, "small", ("qwen2", 16, 1, 2, 2, 32, 300))
    scoring = "_generate_and_score_completions"
    monkeypatch.setattr(module.ProRLTrainer, scoring, getattr(module.ProRLTrainer, scoring))  # watched by its class
    logger = logging.getLogger("trl_prorl")
    level = logger.level
    yield module
    logger.setLevel(level)  # a measurement leaves out the package's warnings


SIZES = ["--prompts", "2", "--num_generations", "4", "--micro_batch", "4", "--longest", "20", "--device", "cpu"]


def test_every_variant_gets_the_same_batches_and_scaled_lengths(bench):
    def mean_length(*more):
        args = bench.parse([*SIZES, "--longest", "4096", *more])
        lengths = [len(one) for number in range(200) for one in bench.draw_batch(args, number)[1]]
        return sum(lengths) / len(lengths)

    args = bench.parse(SIZES)
    assert bench.draw_batch(args, 7) == bench.draw_batch(args, 7) != bench.draw_batch(args, 8)
    prompts, completions = bench.draw_batch(args, 7)
    assert prompts[:4] == [prompts[0]] * 4 and prompts[4:] == [prompts[4]] * 4 and prompts[0] != prompts[4]
    assert all(2 <= len(ids) <= 20 for ids in completions)
    assert mean_length("--scale", "2") / mean_length() == pytest.approx(2.0, rel=0.05)


def test_ratios_are_of_pairs(bench):
    """10/5, 30/10 and 20/20: the median of ratios is 2, though the ratio of medians were 2, 3 or 1 by pairs."""
    assert bench.ratio([10.0, 30.0, 20.0], [5.0, 10.0, 20.0]) == "2.00 [1.00, 3.00]"


@pytest.mark.parametrize("name", ["TRL, fixed reference", "A"])
def test_a_variant_generates_in_its_own_way_and_its_step_ends_when_its_row_is_written(
    tmp_path, bench, name, monkeypatch
):
    """Rows per forward: TRL computes all to the end, ours those that are unfinished. A clock ticks with each row."""
    args = bench.parse(SIZES)
    variant = bench.Trained(name, args, str(tmp_path))
    rows = []
    forward = Qwen2Model.forward

    def watched(self, input_ids=None, **kwargs):
        rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", watched)
    assert variant.generate(0)[0] > 0
    lengths = [len(ids) for ids in bench.draw_batch(args, 0)[1]]
    if name == "A":
        assert rows == [2, *(sum(length > step for length in lengths) for step in range(1, max(lengths)))]
    else:
        assert rows == [8] * max(lengths)
    monkeypatch.undo()
    written = []
    write = JsonLines.write
    monkeypatch.setattr(JsonLines, "write", lambda self, row: (write(self, row), written.append(row)))
    variant.watch.clock = lambda: float(sum("time_step" in row for row in written))
    variant.train(0)
    assert variant.watch.spent["step"][0] == (2 if name == "A" else 0)


def test_operators_are_counted_by_hand(bench):
    """A view, an addition of six numbers, their sum, and a number that is read: 24 + 24, 24 + 4 and 4 bytes."""
    numbers = torch.ones(2, 3)
    operators = bench.Operators("cpu")
    with operators.counting():
        assert (numbers.T + 1).sum().item() == 12.0
    assert operators.counts.tolist() == [4, 3, 80, 1]


@pytest.mark.slow
def test_a_run_prints_a_table_and_writes_every_round(tmp_path, bench, capsys):
    names = ["TRL, fixed reference", "TRL, packed", "B", "floor"]
    bench.main([*SIZES, "--rounds", "2", "--clock", "cpu", "--variants", *names, "--json", str(tmp_path / "x.json")])
    results = json.loads((tmp_path / "x.json").read_text())["results"]
    assert list(results) == names and "floor" in capsys.readouterr().out
    for values in results.values():
        stages = [values[stage] for stage in ("generation", "scoring", "update")]
        sums = [sum(parts) for parts in zip(*stages, strict=True)]
        assert sums == pytest.approx(values["whole"]) and len(sums) == 2
    generated = {name: values["operators"][0] for name, values in results.items()}
    updates = {name: values["operators"][2] for name, values in results.items()}
    assert generated["TRL, fixed reference"] > generated["B"] > generated["floor"] > 0
    assert generated["TRL, packed"] == generated["TRL, fixed reference"]
    assert updates["TRL, packed"] != updates["TRL, fixed reference"]
    assert updates["B"] > updates["floor"] > 0
    assert results["TRL, fixed reference"]["operators"][1] > results["B"]["operators"][1]
    with pytest.raises(SystemExit):
        bench.parse([*SIZES, "--micro_batch", "3"])
    assert "--micro_batch 3" in capsys.readouterr().err
