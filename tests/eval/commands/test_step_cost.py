"""The benchmark's bookkeeping, and one small run of it; what it measures is asserted nowhere."""

import json
from types import SimpleNamespace

import pytest
import torch
from run_record import error_lines
from transformers import Qwen2Model

from trl_prorl.eval import reset_cost, step_cost
from trl_prorl.eval.stepcost import measuring
from trl_prorl.eval.stepcost import settings as of_cost
from trl_prorl.eval.stepcost.measuring import count_tokens
from trl_prorl.eval.stepcost.settings import BASELINE, Batches, parse, settings
from trl_prorl.eval.stepcost.tables import ratio
from trl_prorl.eval.stepcost.trainers import Stopwatch, generation_seconds, make_trainer
from trl_prorl.meter import measure_gpu
from trl_prorl.run_files import JsonLines


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(of_cost.SHAPES, "small", (16, 1, 2, 2, 32, 300))


def arguments(*further):
    sizes = ["--prompts", "2", "--num_generations", "2", "--micro_batch", "2", "--longest", "12", "--rounds", "1"]
    return [*sizes, "--device", "cpu", "--template", "3", *further]


def mean_length(batches):
    lengths = [len(one) for number in range(200) for one in batches.draw(number)[1]]
    return sum(lengths) / len(lengths)


def test_every_variant_gets_the_same_batches_and_scaled_lengths():
    args = parse(arguments("--longest", "4096"))
    once = Batches(args)
    assert once.draw(7) == Batches(args).draw(7) != once.draw(8)
    prompts, completions = once.draw(7)
    assert len(prompts) == len(completions) == 4
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert mean_length(Batches(args, 2.0)) / mean_length(once) == pytest.approx(2.0, rel=0.05)
    assert mean_length(Batches(args, length=5)) == 5


def test_ratios_are_of_pairs():
    """10/5, 30/10 and 20/20: the median of ratios is 2, though the ratio of medians were 2, 3 or 1 by pairs."""
    result = {BASELINE: {"phase": [10.0, 30.0, 20.0]}, "A": {"phase": [5.0, 10.0, 20.0]}}
    assert ratio(result, "A") == (2.0, 1.0, 3.0)


def test_settings():
    found = list(settings(parse(arguments("--iterations", "1", "2", "--lengths", "4", "8", "--checkpointing", "on"))))
    # With one inner pass B's penalty has no effect, and raises an error.
    assert ["B" in arms for _, arms, *_ in found] == [False, False, True, True]
    assert [mean_length(batches) for *_, batches, _ in found] == [4, 8, 4, 8]
    ((_, arms, *_),) = settings(parse(arguments("--arms", "B packed", "TRL β=0")))
    assert arms == [BASELINE, "TRL β=0", "B packed"]


@pytest.mark.parametrize(
    "words",
    [
        *("--rounds 0", "--num_generations 1", "--micro_batch 0", "--threads 0", "--iterations 2 0", "--rank -1"),
        *("--longest 1", "--template -1", "--prompts 0", "--scale 0", "--lengths 4 0", "--dtype int8"),
        "--lengths 13",  # the completions of 12 tokens would be called 13 long
        "--micro_batch 3",  # of 4 rows one would be left out
        "--iterations 1 --arms B",  # TRL would be compared with itself
        f"--out {__file__}",
    ],
)
def test_bad_input_is_one_line_before_anything_is_timed(capsys, words):
    assert step_cost.main(arguments(*words.split())) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert words.split()[0] in line


@pytest.mark.parametrize("words", ["--repeats 0", "--rank 0"])
def test_bad_input_of_the_cost_of_a_reset(capsys, words):
    assert reset_cost.main(words.split()) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert words.split()[0] in line


def test_a_run_leaves_a_table_a_chart_and_its_settings(tmp_path, capsys):
    step_cost.main(arguments("--arms", "B packed", "floor", "--out", str(tmp_path)))
    written = json.loads((tmp_path / "arms.json").read_text())
    assert written["settings"]["rounds"] == 1
    assert set(written["tokens"]) == set(written["results"])
    for result in written["results"].values():
        assert {BASELINE, "B packed", "floor"} == set(result)
        for values in result.values():
            assert values["phase"] == [pytest.approx(values["scoring"] + values["update"])]
            assert values["whole"] == [pytest.approx(values["phase"][0] + values["generated"][0])]
            assert min(values["update"], values["generation"]) > 0
    assert (tmp_path / "arms.png").is_file()
    assert "B packed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ours, all off", BASELINE])
def test_a_step_ends_when_its_row_is_written(tmp_path, monkeypatch, name):
    """A clock that moves by a second whenever a row is written."""
    written = []
    write = JsonLines.write
    monkeypatch.setattr(JsonLines, "write", lambda self, row: (write(self, row), written.append(row)))
    args = parse(arguments())
    trainer = make_trainer(name, args, Batches(args), 2, str(tmp_path))
    trainer.watch.clock = lambda: float(len(written))
    trainer.train()
    rows = [row for row in written if "time_step" in row]
    assert len(rows) == (0 if name == BASELINE else 2)
    assert trainer.watch.seconds["step"] == len(rows)


@pytest.mark.parametrize("name", [BASELINE, "B packed"])
def test_each_variant_generates_in_its_own_way_what_was_drawn(tmp_path, name, monkeypatch):
    """Rows per forward: packed variants compute only unfinished rows, at the lengths of the batch."""
    args = parse(["--prompts", "2", "--num_generations", "4", "--micro_batch", "4", "--longest", "20"])
    batches = Batches(args)
    trainer = make_trainer(name, args, batches, 2, str(tmp_path))
    rows = []
    forward = Qwen2Model.forward

    def watched(self, input_ids=None, **kwargs):
        rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", watched)
    assert generation_seconds(trainer, batches, 0) > 0
    lengths = [len(ids) for ids in batches.draw(0)[1]]
    if name == BASELINE:
        assert rows == [8] * max(lengths)
    else:
        assert rows == [2, *(sum(length > step for length in lengths) for step in range(1, max(lengths)))]


def test_on_a_gpu_the_peak_is_that_of_the_largest_step_or_of_generation(monkeypatch):
    """1 GiB is held; steps take 5 and 3 more, generation 7, and what came before the training 20."""
    counts = {"held": 2**30, "peak": 21 * 2**30}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: counts["peak"])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: counts["held"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: counts.update(peak=counts["held"]))
    cuda = torch.device("cuda", 0)
    watch = Stopwatch(cuda, "wall")
    end_step = watch.time_end_of_step(lambda: measure_gpu(cuda))  # as our trainer ends a step

    def take(gib):
        counts["peak"] = max(counts["peak"], (1 + gib) * 2**30)

    def train():
        for gib in (5, 3):
            take(gib)
            end_step()

    watch.begin()
    train()
    assert (watch.held, watch.peak()) == (1.0, 6.0)
    made = SimpleNamespace(watch=watch, train=train, generation_seconds=lambda *batch: take(7))
    monkeypatch.setattr(measuring, "make_trainer", lambda *setting: made)
    assert measuring.peak_memory("A", None, None, 2) == 7.0


def test_tokens_are_counted_by_hand():
    """
    Two prompts of 3 and 2 tokens with completions of 4, 1 and 2, 2. TRL: 4 rows of 3 + 4; the last token of a row is
    not read while sampling. Left: 3 + 2 + 9. A micro-batch of one completion computes the prompt again.
    """
    prompts = [[1, 2, 3], [1, 2, 3], [4, 5], [4, 5]]
    completions = [[0] * 4, [0], [0] * 2, [0] * 2]
    shared = {"generation": (24, 10), "old policy": (28, 0), "reference": (28, 14)}
    assert count_tokens(prompts, completions, 2, 2) == shared | {"update": (56, 28)}
    assert count_tokens(prompts, completions, 1, 2) == shared | {"update": (56, 38)}
    assert count_tokens(prompts, completions, 4, 1) == shared | {"old policy": (0, 0), "update": (28, 14)}


@pytest.mark.parametrize(
    "shape, kinds",
    [
        ("small-qwen3.5", [*["linear_attention"] * 3, "full_attention"]),
        ("small-gemma3", [*["sliding_attention"] * 5, "full_attention"]),
    ],
)
def test_shapes_of_other_families_have_their_layers(shape, kinds):
    args = parse(["--shape", shape])
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    assert of_cost.new_model(args, tokenizer).config.layer_types == kinds
