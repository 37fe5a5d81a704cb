"""The page about a trigger of one's own: its class fires, and the reset has its reason."""

from doc_pages import ROOT, blocks
from run_record import read_rows

from trl_prorl import ReferenceResetCallback


PAGE = (ROOT / "docs" / "trigger.md").read_text()


def test_the_trigger_of_the_page_resets_where_it_says(run):
    code, making = (block.text for block in blocks(PAGE) if block.language == "python")
    namespace = {}
    exec(code, namespace)
    assert "ReferenceResetCallback([EntropyFloor(0.2)], cooldown=50)" in making
    callback = ReferenceResetCallback([namespace["EntropyFloor"](1e9)], cooldown=3)
    trainer = run(beta=0.1, max_steps=8, trainer_kwargs={"callbacks": [callback]})
    events = read_rows(trainer, "events.jsonl")
    assert [event["reason"] for event in events] == ["entropy_floor"] * 2
    # It fires at once, and again three steps after the reset was applied; batches are used twice.
    assert [(event["step_requested"], event["step_applied"]) for event in events] == [(1, 2), (5, 6)]
    first = read_rows(trainer)[0]
    assert events[0]["value"] == first["entropy"]
    assert events[0]["threshold"] == 1e9
