"""
Packed completions into which tools have written: the same numbers as padded.

A tool's answer stands in the completion, so later tokens attend to it, and `tool_mask` takes it out of the loss.
Packing computes every token of a completion and leaves the mask to TRL.
"""

import pytest
import torch
from run_record import read_rows
from tiny_run import record_results
from tool_run import KEYS, Adds, add, rewarded, speaks
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer


@pytest.fixture
def trained(make_trainer, tools_model):
    def build_and_train(*args, tool=None, **keys):
        tokenizer = AutoTokenizer.from_pretrained(tools_model)
        tools = tool or {"tools": [add]}
        tools = {**tools, "processing_class": tokenizer}
        given = {"model": tools_model, "reward": rewarded, "trainer_kwargs": tools}
        trainer = speaks(make_trainer(*args, **given, **{**KEYS, **keys}))
        made = record_results(trainer, "_sample" if args == () else "_generate_and_score_completions")
        trainer.seen = []
        if isinstance(trainer, ProRLTrainer):
            record = trainer.recorder.on_loss
            trainer.recorder.on_loss = lambda found: (
                trainer.seen.append((dict(found.batch), found.entropies)) or record(found)
            )
        trainer.train()
        trainer.made = [found[0] if isinstance(found, tuple) else found for found in made]
        return trainer

    return build_and_train


@pytest.mark.parametrize(
    "keys, more, packs",
    [
        pytest.param({"beta": 0.2}, {}, ["on"], marks=pytest.mark.slow),  # as the next one, without a term of ours
        ({"beta": 0.2}, {"kl_clamp": 1e6}, ["off", "on"]),  # a bound that no token reaches makes the penalty ours
        ({"beta": 0.2, "tool": {"environment_factory": Adds}}, {}, ["on"]),
    ],
)
def test_training_with_tools_is_trl_s(trained, largest_difference, keys, more, packs):
    theirs = trained(GRPOTrainer, **keys)
    for pack in packs:
        ours = trained(pack_groups=pack, reuse_old_logps=pack == "on", **keys, **more)
        assert ours.acceleration.packs == (pack == "on")
        assert ours.args.adds_penalty == bool(more)
        assert largest_difference(theirs, ours) < 1e-5
        for batch, other in zip(ours.made, theirs.made, strict=True):
            written = batch["completion_mask"].bool() & ~batch["tool_mask"].bool()
            assert torch.equal(batch["tool_mask"], other["tool_mask"])
            assert {len(row.diff().nonzero()) for row in written} >= {0, 2, 4}  # no call, one, and two


def test_rows_that_are_left_out_leave_the_entropy_of_the_model_s_tokens(trained, largest_difference):
    whole, less = (trained(pack_groups="on", skip_zero_rows=skip) for skip in (False, True))
    assert largest_difference(whole, less) < 1e-5
    batch, values = whole.seen[0]  # before the first update
    counts = (batch["completion_mask"] * batch["tool_mask"])[batch["advantages"] != 0].bool()
    assert 0 < len(counts) < len(batch["advantages"])
    assert not counts.all()
    mean = values[batch["advantages"] != 0][counts].mean().item()
    assert read_rows(less)[0]["entropy"] == pytest.approx(mean, rel=1e-5)
    # TRL logs a mean over all rows, those that were left out too.
    assert less.state.log_history[0]["entropy"] == pytest.approx(mean, rel=1e-5)


def test_a_tool_s_tokens_are_not_counted_as_sampled(trained):
    trainer = trained(pack_groups="on")
    rows = read_rows(trainer)
    own = [int((batch["completion_mask"] * batch["tool_mask"]).sum()) for batch in trainer.made]
    assert [row["tokens_generated"] for row in rows if row["tokens_generated"]] == own
    assert own[0] < int(trainer.made[0]["completion_mask"].sum())
