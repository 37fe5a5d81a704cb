"""`trl-prorl branch`: trials that are the run, but for what was tried, also after a kill."""

import json
import shutil
from pathlib import Path

import pytest
from run_record import error_lines, hash_files, read_events, read_rows, without_times

from trl_prorl.cli.command_line import check_arguments
from trl_prorl.eval import branch, trial
from trl_prorl.run.folder import RunFolder
from trl_prorl.train import parse_recipe, run


# Two steps a generation batch: checkpoint-2 is at its end, and the trials end at step 5, inside one.
TRAINING = "tiny/control --max_steps 6 --save_strategy steps --save_steps 2 --eval_strategy steps --eval_steps 2"
TRAINING += " --eval_rows 4 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --lora_r 4"
TRAINING += " --max_completion_length 6 --disable_tqdm true --load_best_model_at_end true"
AT = 2
UNTIL = 5
PROMPTS = 8
HELD_OUT = f"--prompts {PROMPTS} --n 2 --k 1"
RESETS = {"ref_reset": "keep", "ref_reset optimizer_reset=hard": "hard"}


def train(words):
    run(*parse_recipe(check_arguments(None, words.split())))


@pytest.fixture
def here(monkeypatch):
    """Trials train in this process, as a child would; the list of their folders."""
    trained = []

    def run_here(command, log):
        words = command[command.index(branch.TRIAL) + 1 :]
        trained.append(Path(words[words.index("--output_dir") + 1]).name)
        return trial.main(words)

    monkeypatch.setattr(branch, "run_command", run_here)
    return trained


def try_all(run_dir, tries, *more):
    options = [word for text in tries for word in ("--try", text)]
    steps = ["--at", str(AT), "--steps", str(UNTIL - AT)]
    return branch.main(["--run", str(run_dir), *steps, *options, *HELD_OUT.split(), *map(str, more)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder of a run of six steps."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    train(f"{TRAINING} --output_dir {folder}")
    return folder


@pytest.fixture
def run_dir(made, tmp_path):
    """A copy of that run, alone in its folder."""
    shutil.copytree(made, tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


def weights(folder, step):
    return Path(folder, f"checkpoint-{step}", "adapter_model.safetensors").read_bytes()


def correct(folder):
    passk = json.loads((folder / "passk.json").read_text())
    return sum(passk["trained"]["correct"]) / (passk["n"] * passk["prompts"]), passk["greedy"]["trained"]["correct"]


def test_the_control_is_the_run_and_the_others_are_what_was_tried(run_dir, here, tmp_path, change_config):
    """And a reset that no key asks for is known to every resume: the trial's folder alone goes on with it."""
    # What a trial would upload, and fail because there is no Hub here.
    uploads = {"push_to_hub": True, "report_to": ["wandb"], "trackio_space_id": "me/a"}
    change_config(run_dir, **uploads, log_completions=True, log_completions_hub_repo="me/a")
    before = hash_files(run_dir)
    changed = "learning_rate=1e-3"
    assert try_all(run_dir, [*RESETS, changed], "--json", tmp_path / "out.json") == 0
    assert hash_files(run_dir) == before
    out = run_dir.with_name("a-branch-2")
    assert here == ["keep", "ref_reset", "ref_reset+optimizer_reset=hard", changed]
    for name in here:  # the last model, and not the best, which is of an evaluation
        assert (out / name / "adapter_model.safetensors").read_bytes() == weights(out / name, UNTIL)

    rows = [without_times(read_rows(run_dir, file)) for file in ("metrics.jsonl", "evaluations.jsonl")]
    kept = [without_times(read_rows(out / "keep", file)) for file in ("metrics.jsonl", "evaluations.jsonl")]
    assert kept == [rows[0][AT:UNTIL], rows[1][AT // 2 : UNTIL // 2]]
    assert weights(out / "keep", 4) == weights(run_dir, 4)
    for name in ("keep", changed):
        assert read_events(out / name) == []
    for name, treatment in RESETS.items():
        (event,) = read_events(out / name.replace(" ", "+"))
        assert (event["event"], event["step_applied"], event["optimizer_reset"]) == ("reset", AT, treatment)
        assert read_rows(out / name.replace(" ", "+"))[0]["kl_ref"] < rows[0][AT]["kl_ref"]
    assert [row["lr"] for row in read_rows(out / changed)] == [1e-3] * (UNTIL - AT)

    result = json.loads((tmp_path / "out.json").read_text())
    control, greedy = correct(out / "keep")
    for row in result["comparisons"]:
        score, own_greedy = correct(out / row["first"].replace(" ", "+"))
        if row["outcome"] == "greedy":
            score, control_score = sum(own_greedy) / PROMPTS, sum(greedy) / PROMPTS
        else:
            control_score = control
        assert row["second"] == "keep" and row["seeds"] == 1
        assert row["difference"][0] == pytest.approx(score - control_score, abs=1e-12)
    assert {row["outcome"] for row in result["comparisons"]} == {"pass@1", "greedy"}
    assert (out / "branch.png").is_file()

    folder = out / "ref_reset"
    train(f"{folder / 'config.yaml'} --resume_from_checkpoint True")
    assert [row["step"] for row in read_rows(folder)] == [3, 4, 5, 6]
    assert len(read_events(folder)) == 1
    assert read_rows(folder)[-1]["kl_ref"] < read_rows(run_dir)[-1]["kl_ref"]
    assert (folder / "checkpoint-6" / "ref" / "adapter_model.safetensors").is_file()


def test_a_trial_with_the_weights_of_the_control_is_not_compared(run_dir, here, tmp_path, capsys):
    """A reset at a step at which the run resets anyway."""
    resetting = tmp_path / "runs" / "b"
    train(f"{TRAINING} --ref_reset_every {AT} --output_dir {resetting}")
    line = f"- ref_reset is not compared: its weights at step {UNTIL} are those of keep."
    assert try_all(resetting, ["ref_reset"]) == 0
    out = capsys.readouterr().out
    assert line in out and "+0.000" not in out
    assert try_all(resetting, ["ref_reset", "learning_rate=1e-3"]) == 0
    out = capsys.readouterr().out
    assert line in out and "Wrote" in out and "ref_reset − keep" not in out


@pytest.mark.slow
def test_a_trial_that_dies_goes_on_and_others_are_not_repeated(run_dir, here, monkeypatch, capsys, tmp_path):
    whole = tmp_path / "whole"
    assert try_all(run_dir, ["ref_reset"], "--out", whole) == 0
    end = trial.ContinueTo.on_step_end

    def die(self, args, state, control, **kwargs):
        if args.output_dir.endswith("ref_reset") and state.global_step == UNTIL:
            raise MemoryError
        end(self, args, state, control, **kwargs)

    here.clear()
    monkeypatch.setattr(trial.ContinueTo, "on_step_end", die)
    out = run_dir.with_name("a-branch-2")

    def dies(command, log, alive=branch.run_command):
        try:
            return alive(command, log)
        except MemoryError:
            return 1

    monkeypatch.setattr(branch, "run_command", dies)
    assert try_all(run_dir, ["ref_reset"]) == 1
    assert not (out / "ref_reset" / "adapter_model.safetensors").exists()
    monkeypatch.setattr(trial.ContinueTo, "on_step_end", end)
    assert try_all(run_dir, ["ref_reset"]) == 0
    assert here == ["keep", "ref_reset", "ref_reset"]
    resumed = [event["step_applied"] for event in read_events(out / "ref_reset", "resume")]
    assert resumed == [AT, 4]
    assert weights(out / "ref_reset", UNTIL) == weights(whole / "ref_reset", UNTIL)
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert without_times(read_rows(out / "ref_reset", file)) == without_times(read_rows(whole / "ref_reset", file))
    for folder in (out, whole):
        (reset,) = read_events(folder / "ref_reset")
        assert reset["step_applied"] == AT
    # Killed after its last checkpoint, while the model was saved.
    for file in (whole / "ref_reset").glob("*.safetensors"):
        file.unlink()
    here.clear()
    assert try_all(run_dir, ["ref_reset"], "--out", whole) == 0
    assert here == [] and correct(whole / "ref_reset") == correct(out / "ref_reset")
    # Longer, and longer than the run: both go on from where they are.
    here.clear()
    options = ["--run", str(run_dir), "--at", str(AT), "--try", "ref_reset", *HELD_OUT.split()]
    assert branch.main([*options, "--steps", str(7 - AT)]) == 0
    assert here == ["keep", "ref_reset"]
    assert [row["step"] for row in read_rows(out / "ref_reset")] == [3, 4, 5, 6, 7]
    assert without_times(read_rows(out / "keep"))[:4] == without_times(read_rows(run_dir))[AT:]
    capsys.readouterr()
    assert branch.main([*options, "--steps", str(UNTIL - AT)]) == 2  # behind where they are


@pytest.mark.slow
def test_a_run_that_has_stopped_is_continued_and_its_stops_end_no_trial(here, tmp_path):
    """The first evaluation is the best, so `stop_stall: 1` has ended the run after the second."""
    run_dir = tmp_path / "runs" / "b"
    words = TRAINING.replace("--eval_steps 2", "--eval_steps 1").replace("--load_best_model_at_end true", "")
    words = words.replace("--save_strategy steps --save_steps 2", "--save_strategy best")
    train(f"{words} --stop_stall 1 --ref_reset_min_delta 9 --output_dir {run_dir}")
    assert [event["step_applied"] for event in read_events(run_dir, "stall")] == [2]
    assert try_all(run_dir, ["ref_reset"]) == 0
    for name in ("keep", "ref_reset"):
        folder = run_dir.with_name("b-branch-2") / name
        assert [row["step"] for row in read_rows(folder)] == [3, 4, 5]
        assert [event["step_applied"] for event in read_events(folder, "stall")] == [3, 4, 5]
        state = json.loads((folder / "checkpoint-5" / "prorl_state.json").read_text())
        assert state["parts"]["end"] == {"ended_by": None}


@pytest.mark.slow
def test_a_trial_with_another_sampling_is_evaluated_as_the_control(run_dir, here, tmp_path):
    result = tmp_path / "result.json"
    other = 'temperature=0.5 max_completion_length=4 chat_template_kwargs={"enable_thinking":false}'
    assert try_all(run_dir, [other], "--json", result) == 0
    assert [row["outcome"] for row in json.loads(result.read_text())["comparisons"]] == ["pass@1", "greedy"]
    passk = [json.loads(path.read_text()) for path in run_dir.with_name("a-branch-2").glob("*/passk.json")]
    assert [(each["temperature"], each["max_new_tokens"]) for each in passk] == [(1.0, 6)] * 2
    assert not any("chat_template_kwargs" in each for each in passk)


def test_a_folder_that_is_in_use_or_of_something_else(run_dir, here, capsys, tmp_path):
    out = run_dir.with_name("a-branch-2")
    out.mkdir()
    (out / "branch.json").write_text(json.dumps(branch.identify(run_dir, run_dir / "checkpoint-2")))
    with RunFolder(out / "keep").held():
        assert try_all(run_dir, ["ref_reset"]) == 2
    assert here == []
    # The run has begun again, and has come to this step once more.
    (out / "branch.json").write_text(json.dumps({**branch.identify(run_dir, run_dir / "checkpoint-2"), "run": "a"}))
    assert try_all(run_dir, ["ref_reset"]) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    assert try_all(run_dir, ["ref_reset"], "--out", tmp_path / "mine") == 2
    lines = error_lines(capsys.readouterr().err)
    for line, folder in zip(lines, (out / "keep", out, tmp_path / "mine"), strict=True):
        assert str(folder) in line
    assert here == []


@pytest.mark.parametrize("link", ["", "keep", "keep.log", "branch.json", "keep/.hidden/a"])
def test_nothing_is_written_through_a_link_of_a_stranger(run_dir, here, capsys, tmp_path, link):
    """In the folder where a branch would lie by default, which came with the run."""
    project = tmp_path / "project"
    (project / "checkpoint-2").mkdir(parents=True)
    (project / "config.yaml").write_text("mine")
    before = hash_files(project)
    path = run_dir.with_name("a-branch-2") / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(project / "config.yaml" if "." in link[1:] and "/" not in link else project)
    assert try_all(run_dir, ["ref_reset"]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert "a-branch-2" in line and Path(link).name in line
    assert hash_files(project) == before
    assert here == []


def test_a_folder_that_is_a_link_is_refused(run_dir, here, capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for target in (empty, tmp_path / "nowhere"):
        out = run_dir.with_name(f"to-{target.name}")
        out.symlink_to(target)
        assert try_all(run_dir, ["ref_reset"], "--out", out) == 2
        assert str(target) in capsys.readouterr().err
    assert not any(empty.iterdir())
