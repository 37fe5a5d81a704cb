import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import trl_prorl.tasks
from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples import held_out
from trl_prorl.eval.samples.held_out import HeldOut, plan
from trl_prorl.eval.samples.store import content_ids
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.tasks.mixture import Mixture
from trl_prorl.tasks.sorting import Sorting


@pytest.fixture
def calls(monkeypatch):
    """Prompts and samples of every call that draws; one of more sequences than `most` finds the GPU full."""
    original = held_out.sample

    class Calls(list):
        most = 512

    made = Calls()

    def spy(model, tokenizer, task, rows, n, *settings, **keys):
        if len(rows) * n > made.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        made.append((len(rows), n))
        return original(model, tokenizer, task, rows, n, *settings, **keys)

    monkeypatch.setattr(held_out, "sample", spy)
    return made


def texts(samples):
    return samples["completion"].tolist()


@pytest.fixture
def drawn(run_dir, task):
    """A function: the texts of an evaluation's samples of the trained model, or of the base."""

    def draw(prompts, n, side="trained", **settings):
        evaluation = HeldOut(run_dir, "test", prompts, **settings)
        return texts(evaluation.samples(getattr(evaluation, side), n))

    return draw


@given(missing=st.dictionaries(st.integers(0, 40), st.integers(1, 300), max_size=20), batch_size=st.integers(1, 64))
def test_a_plan_draws_exactly_what_is_missing(missing, batch_size):
    drawn = dict.fromkeys(missing, 0)
    for places, count in plan(missing, batch_size):
        assert 1 <= len(places) * count <= batch_size
        for place in places:
            drawn[place] += count
    assert drawn == missing


def test_a_gpu_without_memory_for_a_batch_names_the_option_and_keeps_what_was_drawn(drawn, calls, monkeypatch):
    drawn(2, 4, batch_size=8)
    calls.most = 4
    with pytest.raises(RunError, match="--batch-size 8"):
        drawn(6, 4, batch_size=8)
    assert len(drawn(6, 4, batch_size=4)) == 24
    assert calls == [(2, 4)] + 4 * [(1, 4)]


def test_nothing_is_sampled_twice(drawn, calls):
    few = drawn(4, 2, batch_size=8)
    assert drawn(4, 2, batch_size=8) == few
    assert calls == [(4, 2)]
    # More samples: what is there stays, and only the rest is drawn; more prompts: only the new ones.
    more = drawn(4, 5, batch_size=8)
    assert [text for place, text in enumerate(more) if place % 5 < 2] == few
    assert drawn(5, 5, batch_size=8)[:20] == more
    assert drawn(4, 2, batch_size=8) == few
    assert calls[1:] == [(2, 3), (2, 3), (1, 5)]
    # Every batch has a seed of its own; with one seed for all, the second half would repeat the first.
    both = drawn(2, 40, "base", batch_size=20)
    assert both[:20] != both[20:40]


def test_other_settings_and_weights_are_sampled_anew(run_dir, drawn, calls):
    sampled = drawn(3, 2)
    for number, change in enumerate(({"temperature": 0.5}, {"max_new_tokens": 3}, {"seed": 1}), start=2):
        drawn(3, 2, **change)
        assert len(calls) == number
    assert drawn(3, 2) == sampled
    assert len(calls) == 4
    path = run_dir / "adapter_model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(path).items()}, path)
    drawn(3, 2)
    assert len(calls) == 5


BASE_CONFIG = "base/config.json"
TOKENIZER = "A/tokenizer.json"
REPLACE = {"type": "Replace", "pattern": {"String": "7"}, "content": "3"}


@pytest.mark.parametrize(
    "full, file, change, is_other",
    [
        (False, BASE_CONFIG, {"rms_norm_eps": 10.0}, True),
        (True, "A/config.json", {"rms_norm_eps": 10.0}, True),
        (False, TOKENIZER, {"normalizer": REPLACE}, True),
        (False, "A/tokenizer_config.json", {"eos_token": "7"}, True),
        (False, "A/config.yaml.bak", {}, False),
    ],
)
def test_samples_of_another_configuration_or_tokenizer_are_drawn_again(
    run_dir, base, drawn, tmp_path, calls, change_config, full, file, change, is_other
):
    shutil.copytree(base, tmp_path / "base")
    if full:
        shutil.copy(base / "config.json", run_dir)
        shutil.copy(base / "model.safetensors", run_dir)
        (run_dir / "adapter_config.json").unlink()
    change_config(run_dir, model_name_or_path=str(tmp_path / "base"))
    before = drawn(3, 4)
    changed = tmp_path / file
    content = json.loads(changed.read_text()) if changed.exists() else {}
    changed.write_text(json.dumps(content | change))
    assert (drawn(3, 4) != before) == is_other
    assert len(calls) == 1 + is_other


def test_a_killed_evaluation_goes_on(forks, run_dir, tmp_path, change_config):
    """Killed from outside while it samples; its samples and the rest are those of an undisturbed evaluation."""
    change_config(run_dir, task_level=2)
    undisturbed = shutil.copytree(run_dir, tmp_path / "elsewhere" / "A")
    arguments = ["--run", str(run_dir), "--prompts", "10", "--n", "4", "--k", "1", "--batch-size", "4"]
    process = forks.start(run="-m", argv=["eval.passk", *arguments], log=str(tmp_path / "log"))
    while not list(run_dir.glob("samples/base-*.parquet")):
        os.kill(process, 0)  # it has not ended
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    assert forks.status() == -signal.SIGKILL
    resumed, control = (HeldOut(folder, "test", 10, batch_size=4) for folder in (run_dir, undisturbed))
    assert 0 < len(resumed.store(resumed.base, resumed.sampling).read()) < 40
    assert texts(resumed.samples(resumed.base, 4)) == texts(control.samples(control.base, 4))


@pytest.fixture
def beside(run_dir, task, tmp_path):
    """A copy of the run in the same folder, whose samples of both models are on disk: its evaluation of 6 prompts."""
    shutil.copytree(run_dir, tmp_path / "B")
    evaluation = HeldOut(tmp_path / "B", "test", 6)
    for point in (evaluation.base, evaluation.trained):
        evaluation.samples(point, 4)
    return evaluation


def test_the_base_s_samples_of_a_run_beside_are_judged_again(beside, run_dir, calls, capsys):
    honest = beside.samples(beside.base, 4)
    assert 0 < honest["correct"].mean() < 1
    store = beside.store(beside.base, beside.sampling)
    store.write(store.read().assign(correct=True, answer="mine"))
    ours = HeldOut(run_dir, "test", 7)
    taken = ours.samples(ours.base, 4)
    taken = taken[taken["prompt_id"].isin(beside.prompt_ids)]
    assert texts(taken) == texts(honest)
    assert taken["correct"].tolist() == honest["correct"].tolist()
    assert "B are used" in capsys.readouterr().out
    assert calls == [(1, 4)]  # of the prompt that is not there
    ours.samples(ours.trained, 4)
    assert calls == [(1, 4), (7, 4)]  # what a run trained is its own


def test_prompts_of_the_training_split_are_counted_as_trained_on(run_dir):
    evaluation = HeldOut(run_dir, "train", 6)
    assert evaluation.in_training == 6
    evaluation.config["train_rows"] = 4
    assert evaluation._count_in_training() == 4
    assert HeldOut(run_dir, "test", 6).in_training is None


def test_prompts_of_a_users_task_are_counted_in_a_mixture(run_dir, change_config, monkeypatch):
    """Its test rows are training rows."""

    class Same(Sorting):
        def rows(self, split, n, seed=0):
            return super().rows("train", n, seed)

    mixture = Mixture({"sorting": 1})
    mixture.members["sorting"] = Same()
    monkeypatch.setattr("trl_prorl.tasks.registry.get_task", lambda name, **options: mixture)
    change_config(run_dir, train_rows=6)
    assert HeldOut(run_dir, "test", 6).in_training == 6


def test_names_of_tasks():
    assert TaskName.parse("parity@2") == TaskName("parity", 2)
    assert TaskName.parse("gsm8k=/some/where") == TaskName("gsm8k", path="/some/where")


def test_verdicts_of_other_graders_are_given_anew_and_nothing_is_sampled(run_dir, task, calls, monkeypatch):
    def judged():
        evaluation = HeldOut(run_dir, "test", 4)
        return evaluation.samples(evaluation.trained, 3)

    before = judged()
    monkeypatch.setattr(type(task), "verify_many", lambda self, texts, rows: [True] * len(texts))
    monkeypatch.setattr(type(task), "answer_of", lambda self, text, row: f"of {text}")
    assert judged()["correct"].tolist() == before["correct"].tolist()
    monkeypatch.setattr(held_out, "grader_version", lambda: "another")
    after = judged()
    assert after["correct"].all() and not before["correct"].all()
    assert texts(after) == texts(before)
    assert after["answer"].tolist() == [f"of {text}" for text in texts(after)]
    monkeypatch.setattr(type(task), "verify_many", None)
    assert judged()["correct"].all()  # they are kept
    assert len(calls) == 1


def test_the_graders_version_is_of_all_their_files(tmp_path, monkeypatch):
    """Those of the locked workers too, which stand in a folder of their own."""
    package = tmp_path / "tasks"
    shutil.copytree(Path(trl_prorl.tasks.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(trl_prorl.tasks, "__file__", str(package / "__init__.py"))
    versions = set()
    for file in ("math.py", "isolated/math_worker.py"):
        (package / file).write_text((package / file).read_text() + "# another\n")
        held_out.grader_version.cache_clear()
        versions.add(held_out.grader_version())
    held_out.grader_version.cache_clear()
    assert len(versions) == 2


def test_rows_are_named_by_content():
    first = {"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}
    second = {**first, "answer": "3"}
    names = content_ids([first, second, first])
    assert names[0] == content_ids([dict(reversed(first.items()))])[0]
    assert names[2] == names[0] != names[1]


def test_a_row_that_is_there_twice_counts_once_and_a_line_says_so(run_dir, task, monkeypatch, capsys):
    """Of the same prompt with another answer each is kept, and all columns count."""
    first, second = ({"prompt": [{"role": "user", "content": f"say {i}"}], "answer": i} for i in (0, 1))
    rows = Dataset.from_list([first, second, first, {**first, "answer": 1}, second])
    monkeypatch.setattr(task, "rows", lambda *args, **keys: rows)
    assert HeldOut(run_dir, "test", 5).rows == [first, second, {**first, "answer": 1}]
    (line,) = capsys.readouterr().out.splitlines()
    assert "2 of 5" in line


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "passk.json"
    write_json(path, {"n": 1})

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
