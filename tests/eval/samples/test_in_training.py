"""Prompts of an evaluation that occur in the training set, by their content: counted, and said wherever they count."""

import json

import pytest
from datasets import Dataset, IterableDataset

from trl_prorl import drift, evaluate
from trl_prorl.eval import report
from trl_prorl.hub.card import eval_results, model_card, read_record


def chats(texts, **more):
    prompts = [[{"role": "user", "content": text}] for text in texts]
    return Dataset.from_dict({"prompt": prompts, **{name: [value] * len(texts) for name, value in more.items()}})


TEXTS = [f"say {i}" for i in range(16)]
TRAIN = chats(TEXTS)
NEW = chats(["sing a", "sing b", "sing c", "sing d"])
SAME = chats(TEXTS[:4], letter="e")  # another column
SPACED = chats([f" SAY  {i}\n" for i in range(4)])
AS_TEXT = Dataset.from_dict({"prompt": TEXTS[:4]})
SYSTEM = Dataset.from_dict(
    {"prompt": [[{"role": "system", "content": "be brief"}, {"role": "user", "content": text}] for text in TEXTS[:4]]}
)
SOME = chats(["sing a", "say 1", "sing c", "sing d"])
OTHER_FORMS = {"spaced": SPACED, "text": AS_TEXT, "system": SYSTEM, "some": SOME, "new": NEW}
STREAM = IterableDataset.from_generator(lambda: iter([{"prompt": prompt} for prompt in TRAIN["prompt"]]))


def holds_e(completion, row):
    return "e" in completion


def trained(run, rows=TRAIN, **more):
    keys = {"max_steps": 1, "accelerator_config": {"dispatch_batches": False}}
    return run(trainer_kwargs={"train_dataset": rows, **more}, **keys)


@pytest.fixture
def everywhere(capsys):
    """A function that evaluates rows, and returns `passk.json` and all texts that show it, by place."""

    def measure(trainer, rows):
        trainer.save_model()
        capsys.readouterr()
        evaluate(trainer, rows, holds_e, n=2, k=[1], greedy=False)
        shown = {"terminal": capsys.readouterr().out}
        assert report.main(["--run", str(trainer.run_dir), "--out", str(trainer.run_dir / "page")]) == 0
        capsys.readouterr()
        shown["report"] = (trainer.run_dir / "page" / "report.md").read_text()
        shown["card"] = str(model_card(trainer.run_dir)).split("## Results")[1]
        shown["model-index"] = str(eval_results(read_record(trainer.run_dir))[0].dataset_split)
        texts = {place: " ".join(text.split()) for place, text in shown.items()}
        return json.loads((trainer.run_dir / "passk.json").read_text()), texts

    return measure


@pytest.mark.parametrize(
    "train, rows, split, count, said",
    [
        (TRAIN, SAME, "train", 4, "all prompts occur in the training set"),
        (TRAIN, SOME, "test", 1, "1 of 4 prompts occur in the training set"),
        (STREAM, SAME, "test", None, "not compared with the training set"),
        (TRAIN, NEW, "test", 0, None),
    ],
)
def test_the_split_is_qualified_where_it_has_to_be(run, everywhere, train, rows, split, count, said):
    trainer = trained(run, train)
    passk, shown = everywhere(trainer, rows)
    assert (passk["split"], passk["in_training"]) == (split, count)
    for text in shown.values():
        assert said in text if said else "in the training set" not in text
    if split == "train":
        assert "Held-out" not in shown["card"]
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
def test_an_evaluation_during_training_says_how_much_of_it_was_trained_on(run, capsys, train, rows, shares):
    trainer = trained(run, train, eval_dataset=rows)
    out = capsys.readouterr().out
    metrics = trainer.evaluate()
    for name, share in shares.items():
        assert metrics.get(f"eval{name}_in_training") == share
    assert any(line.startswith("eval_dataset") for line in out.splitlines()) == (rows is not NEW)
