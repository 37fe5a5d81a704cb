"""Prompts of an evaluation that occur in the training set, by their content: counted, and said wherever they count."""

import json
import math

import pytest
from datasets import Dataset, IterableDataset

from trl_prorl import drift, evaluate
from trl_prorl.eval import report
from trl_prorl.hub.card import model_card
from trl_prorl.run.log_files import saved_step


def chats(texts, **more):
    prompts = [[{"role": "user", "content": text}] for text in texts]
    return Dataset.from_dict({"prompt": prompts, **{name: [value] * len(texts) for name, value in more.items()}})


TEXTS = [f"say {i}" for i in range(16)]
TRAIN = chats(TEXTS)
NEW = chats(["sing a", "sing b", "sing c", "sing d"])
SAME = chats(TEXTS[:4], letter="e")  # another column
SOME = chats(["sing a", "say 1", "sing c", "sing d"])
SYSTEM = {"role": "system", "content": "be brief"}
OTHER_FORMS = {
    "spaced": chats([f" SAY  {i}\n" for i in range(4)]),
    "text": Dataset.from_dict({"prompt": TEXTS[:4]}),
    "system": Dataset.from_dict({"prompt": [[SYSTEM, *prompt] for prompt in TRAIN["prompt"][:4]]}),
    "some": SOME,
    "new": NEW,
}
STREAM = IterableDataset.from_generator(lambda: iter([{"prompt": prompt} for prompt in TRAIN["prompt"]]))


def holds_e(completion, row):
    return "e" in completion


def test_rows_that_are_there_twice_are_no_independent_prompts(run, capsys):
    """Four prompts give no interval, and the same ones eight times neither."""
    trainer = trained(run)
    result = evaluate(trainer, chats(["sing a", "sing b", "sing c", "sing d"] * 8), holds_e, n=2, k=[1], greedy=False)
    assert result["prompts"] == len(result["trained"]["correct"]) == 4
    assert math.isnan(result["trained"]["interval@1"][0])
    assert [line for line in capsys.readouterr().out.splitlines() if "28 of 32 rows" in line]


def trained(run, rows=TRAIN, **more):
    keys = {"max_steps": 1, "accelerator_config": {"dispatch_batches": False}}
    return run(trainer_kwargs={"train_dataset": rows, **more}, **keys)


@pytest.mark.parametrize(
    "train, rows, split, count",
    [(TRAIN, SAME, "train", 4), (TRAIN, SOME, "test", 1), (STREAM, SAME, "test", None), (TRAIN, NEW, "test", 0)],
)
def test_the_split_is_qualified_where_it_has_to_be(run, capsys, train, rows, split, count):
    trainer = trained(run, train)
    trainer.save_model()
    assert saved_step(trainer.args.output_dir) == 1
    capsys.readouterr()
    print(evaluate(trainer, rows, holds_e, n=2, k=[1], greedy=False))
    shown = {"terminal": capsys.readouterr().out}
    passk = json.loads((trainer.run_dir / "passk.json").read_text())
    assert (passk["split"], passk["in_training"]) == (split, count)
    assert report.main(["--run", str(trainer.run_dir), "--out", str(trainer.run_dir / "page")]) == 0
    shown["report"] = (trainer.run_dir / "page" / "report.html").read_text()
    card = model_card(trainer.run_dir)
    shown["card"] = card.text
    shown["model-index"] = card.data.eval_results[0].dataset_split
    for place, text in shown.items():
        assert ("the training set" in " ".join(text.split())) == (rows is not NEW), place
    if split == "train":
        drifted = drift(trainer, rows, samples=1)
        assert (drifted["split"], drifted["in_training"]) == (split, count)


@pytest.mark.parametrize(
    "train, rows, shares",
    [
        (TRAIN, OTHER_FORMS, {"_spaced": 1.0, "_text": 1.0, "_system": 1.0, "_some": 0.25, "_new": None}),
        (TRAIN, NEW, {"": None}),
        (STREAM, SAME, {"": None}),
    ],
)
def test_an_evaluation_during_training_says_how_much_of_it_was_trained_on(run, train, rows, shares):
    metrics = trained(run, train, eval_dataset=rows).evaluate()
    for name, share in shares.items():
        assert metrics.get(f"eval{name}_in_training") == share
