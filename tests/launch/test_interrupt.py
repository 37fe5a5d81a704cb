"""Ctrl-C: one line, what was kept and how to go on, exit code 130."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from transformers import TrainerCallback

from trl_prorl.checkpoint.files import find_newest_checkpoint
from trl_prorl.demo import DemoRun, train
from trl_prorl.eval.command import command
from trl_prorl.interrupt import end_at_once, interrupt_as_usual
from trl_prorl.launch.interrupt import what_a_script_keeps, what_is_kept


ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "grpo_variantA.py"
LONG = "--max_steps 500 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --lora_r 4 "
LONG += "--disable_tqdm true --save_strategy steps"


def arguments(model, out, save_steps):
    """Of a long training."""
    return ["--model_name_or_path", model, "--output_dir", str(out), *LONG.split(), "--save_steps", str(save_steps)]


def wait_for(found, process):
    """Until something is there, or the process that is to bring it has ended."""
    while not found():
        os.kill(process, 0)
        time.sleep(0.01)


def popen(command, **kwargs):
    """
    A process whose stderr is read. A shell's background jobs, and so the tests that run in one, begin with SIGINT
    ignored.
    """
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **kwargs}
    return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **given)


def lines_of(text, beginning="interrupted: "):
    assert "Traceback" not in text and "KeyboardInterrupt" not in text, text[-3000:]
    return [line for line in text.splitlines() if line.startswith(beginning)]


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_that_is_interrupted_says_what_was_kept_and_goes_on(forks, tmp_path, tiny_model, ranks):
    out = tmp_path / "run"
    log = tmp_path / "log"
    order = {"ranks": ranks} if ranks else {}
    process = forks.start(run=str(RECIPE), argv=arguments(tiny_model, out, save_steps=2), log=str(log), **order)
    wait_for(lambda: find_newest_checkpoint(out, content=False)[0] is not None, process)
    (os.killpg if ranks else os.kill)(process, signal.SIGINT)
    assert forks.status() == 130, log.read_text()[-3000:]
    (line,) = lines_of(log.read_text())
    checkpoint, _ = find_newest_checkpoint(out)
    cure = "Go on with the same command and --resume_from_checkpoint True."
    assert line == f"interrupted: {checkpoint} and the record up to it are kept. {cure}"
    assert not (out / "run.lock").exists()


def test_before_the_first_checkpoint_and_before_the_first_step(forks, tmp_path, tiny_model):
    out = tmp_path / "run"
    log = tmp_path / "log"
    process = forks.start(run=str(RECIPE), argv=arguments(tiny_model, out, save_steps=500), log=str(log))
    metrics = out / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
    os.kill(process, signal.SIGINT)
    assert forks.status() == 130
    (line,) = lines_of(log.read_text())
    assert f"the record in {out} is kept, and there is no checkpoint yet" in line
    assert "begins again" in line
    assert what_is_kept(tmp_path / "nothing", begun=False).startswith("no step was begun")
    assert "come to its end" in what_is_kept(out, begun=True, model=out / "adapter_model.safetensors")


SCRIPT = """
import os, signal, sys
import training

_, model, out = sys.argv
trainer = training.build(model, out, True, 4, {"max_steps": 500})
trainer.add_callback(training.AtStep(2, lambda args: os.kill(os.getpid(), signal.SIGINT)))
trainer.train()
"""


def test_a_script_ends_with_one_line(tiny_model, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "run"
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'forks'}"}
    with popen([sys.executable, "script.py", tiny_model, str(out)], cwd=tmp_path, env=env) as process:
        (line,) = lines_of(process.communicate()[1])
    kept = f"{out / 'checkpoint-1'} and the record up to it are kept"
    assert line == f"interrupted: {kept}. Go on with train(resume_from_checkpoint=True)."
    assert process.returncode == 130


def test_a_script_may_catch_it(make_trainer, tmp_path, monkeypatch, capsys):
    """A notebook shows the error that is raised, without the frames of the loop."""

    class Key(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back after the test
    trainer = make_trainer(output_dir=str(tmp_path / "run"), trainer_kwargs={"callbacks": [Key()]})
    with pytest.raises(KeyboardInterrupt) as error:
        trainer.train()
    assert not any("transformers" in str(frame.path) for frame in error.traceback)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("interrupted: "))
    assert f"the record in {tmp_path / 'run'} is kept, and there is no checkpoint yet. train() begins again" in line
    assert what_a_script_keeps(tmp_path / "nothing", begun=False).startswith("no step was begun")


# A command, and a module that is imported on the way to those that take seconds.
WHILE_IMPORTING = {
    "recipe": ([str(RECIPE)], "numpy"),
    "trl_prorl.train": (["-m", "trl_prorl.train", "--config", str(ROOT / "recipes/tiny/variantA.yaml")], "numpy"),
    "trl-prorl": (["-m", "trl_prorl.commands", "passk", "--run", "run"], "numpy"),
    "demo": ([str(ROOT / "recipes" / "demo.py")], "rich.console"),
}


@pytest.mark.parametrize("case", WHILE_IMPORTING)
def test_while_the_imports_last(case, tmp_path):
    folder = tmp_path / "run"  # what the command line names is looked at before
    folder.mkdir()
    (folder / "config.yaml").write_text("model_name_or_path: embedded\ntask: reverse_digits\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    command, imported = WHILE_IMPORTING[case]
    command = [sys.executable, "-X", "importtime", *command]  # it writes a line for every module
    with popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        assert any(line.rpartition("|")[2].strip() == imported for line in process.stderr)
        process.send_signal(signal.SIGINT)
        (line,) = lines_of(process.stderr.read())
    assert process.returncode == 130
    assert "nothing has changed" in line


AT_WORK = {
    "step_cost": ["eval.step_cost", "--device", "cpu", "--shape", "small", "--rounds", "100000"],
    "reset_cost": ["eval.reset_cost", "--device", "cpu", "--layers", "1", "--repeats", "1000000"],
    "tasks": ["tasks", "show", "reverse_digits", "-n", "100000000"],
}


def ticks(process):
    """Hundredths of a second that a process has computed."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


@pytest.mark.parametrize("case", AT_WORK)
def test_a_command_at_work(forks, tmp_path, case):
    log = tmp_path / "log"
    process = forks.start(run="-m", argv=AT_WORK[case], log=str(log), cwd=str(tmp_path))
    wait_for(lambda: ticks(process) > 30, process)  # its imports are over
    os.kill(process, signal.SIGINT)
    assert forks.status() == 130, log.read_text()[-3000:]
    assert lines_of(log.read_text()) == ["interrupted: nothing has changed. The same command begins anew."]
    assert list(tmp_path.iterdir()) == [log]


def test_a_push(hub, hub_forks, run, tmp_path):
    """While it waits to try again."""
    trainer = run(max_steps=1)
    log = tmp_path / "log"
    trainer.save_model()
    hub.fail("/commit/", 500)
    argv = ["eval.push", "--run", trainer.args.output_dir, "--repo", "someone/stopped"]
    process = hub_forks.start(run="-m", argv=argv, log=str(log))
    wait_for(lambda: any("/commit/" in request for request in hub.requests), process)
    os.kill(process, signal.SIGINT)
    assert hub_forks.status() == 130, log.read_text()[-3000:]
    (line,) = lines_of(log.read_text())
    assert "the Hub has all of the push or nothing of it" in line
    assert hub.files("someone/stopped") == {}


def test_the_demo(tmp_path):
    """A terminal sends the signal to the demo and to the arms that it trains."""
    demo = [sys.executable, str(ROOT / "recipes" / "demo.py"), "--out", str(tmp_path), "--side-by-side", "1"]
    with popen(demo, start_new_session=True) as process:
        wait_for(lambda: (tmp_path / "control.log").exists() or process.poll() is not None, process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    line = "".join(lines_of(said))
    assert process.returncode == 130, (process.returncode, said[-3000:])
    assert "arms that came to their end" in line
    assert "goes on from there" in line


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), signal.SIGINT)", "os._exit(130)"])
def test_an_arm_of_the_demo_that_the_signal_reaches_first(tmp_path, ends):
    arm = DemoRun(ROOT / "recipes" / "tiny" / "plain.yaml", tmp_path / "plain", 1, [])
    arm.command = [sys.executable, "-c", f"import os, signal; signal.signal(2, signal.SIG_DFL); {ends}"]
    with pytest.raises(KeyboardInterrupt):
        train([arm], side_by_side=1)


@pytest.fixture
def handler():
    """Of SIGINT, put back after the test."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_evaluation(capsys, handler):
    @command
    def main(argv=None):
        raise KeyboardInterrupt

    assert main([]) == 130
    (line,) = lines_of(capsys.readouterr().err)
    assert "kept" in line
    assert "The same command goes on" in line
    assert handler().line == b""  # the key once more ends the process, and says nothing


def test_where_the_signal_is_ignored_it_stays_ignored(handler):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup does
    end_at_once("x")
    interrupt_as_usual()
    assert handler() is signal.SIG_IGN


@pytest.mark.slow
def test_under_the_launcher_our_line_is_there_too(tmp_path, tiny_model):
    out = tmp_path / "run"
    log = tmp_path / "log"
    launcher = [str(Path(sys.executable).with_name("accelerate")), "launch", "--num_processes", "1", "--cpu"]
    with open(log, "w") as file:
        command = [*launcher, str(RECIPE), *arguments(tiny_model, out, save_steps=2)]
        process = popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            wait_for(lambda: process.poll() is not None or find_newest_checkpoint(out, content=False)[0], process.pid)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=120) != 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert sum(line.startswith("interrupted: ") for line in log.read_text().splitlines()) == 1, log.read_text()[-3000:]
