"""
A process that has paid for the imports, and forks for every order: one line of JSON on stdin,
`{"run": ..., "log": ...}`.

It prints the fork's process id at the beginning and the exit status at the end. `run` is the path of a script, with
its `argv`, `cwd` and `env`, or `"-m"`, with a module as the first of `argv`, or `"training"`, see training.py, or
`"exec"`, for another program. `terminal` puts it on a pseudo-terminal. `hub` is the address of a Hub, see
hub_server.py. `ranks` is a number of processes, started as a launcher would; they are one process group, whose leader
is the fork. With `patient` a rank that fails takes no other with it: each has to end by itself.
"""

import gc
import json
import os
import pty
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import bitsandbytes  # noqa: F401
import matplotlib.figure  # noqa: F401  what an evaluation and a report import
import pandas  # noqa: F401
import scipy.stats  # noqa: F401
import torch
from huggingface_hub import constants, hf_api

import trl_prorl.train  # noqa: F401  what every recipe script imports
from trl_prorl.cli.environment import versions
from trl_prorl.run import provenance


sys.path.append(str(Path(__file__).parent.parent))

import training  # noqa: E402
from hub_server import TOKEN, constants_for  # noqa: E402
from once import do_once  # noqa: E402


sys.path.pop()  # the folders there must not hide packages of their names


def work(order):
    torch.set_num_threads(1)
    if order["hub"]:
        os.environ["HF_TOKEN"] = TOKEN
        hf_api.api.endpoint = order["hub"]
        vars(constants).update(constants_for(order["hub"]))
    if order["run"] == "training":
        return training.train(order)
    os.chdir(order.get("cwd", "."))
    if order["run"] == "exec":
        os.execv(order["argv"][0], order["argv"])
    sys.orig_argv = [sys.executable, order["run"], *order["argv"]]
    if order["run"] == "-m":
        sys.argv = order["argv"]
        sys.path.insert(0, "")  # as Python does for a module
        return runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.argv = [order["run"], *order["argv"]]
    sys.path.insert(0, str(Path(order["run"]).parent))  # as Python does for a script
    runpy.run_path(order["run"], run_name="__main__")


def launch(order):
    """
    Fork every rank; the first that fails takes the others with it, but not after Ctrl-C, as torchrun has it. Returns
    the exit status of the run.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["WORLD_SIZE"] = str(order["ranks"])
    ranks = {}
    for rank in range(order["ranks"]):
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        if (process := os.fork()) == 0:
            child(order)
        ranks[process] = rank
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    failed = 0
    while ranks:
        process, status = os.wait()
        ranks.pop(process)
        if (status := os.waitstatus_to_exitcode(status)) and not failed:
            failed = status
            if interrupted or order.get("patient"):
                continue
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    os._exit(failed if failed >= 0 else 128 - failed)


def on_terminal():
    """Go on in a fork on a pseudo-terminal; this process writes what is shown there, and ends as the fork does."""
    process, ours = pty.fork()
    if process == 0:
        return
    with suppress(OSError):  # so it ends on Linux
        while part := os.read(ours, 65536):
            os.write(1, part)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def child(order):
    status = 1
    os.environ |= order.get("env", {})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    try:
        with open(order["log"], "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # so the log has its lines in order
        if order.get("terminal"):
            on_terminal()
        work_or_show_error(order)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def work_or_show_error(order):
    """Work; an error is shown by the hook of the process, which may decide its exit status."""
    try:
        work(order)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise SystemExit(1) from None


do_once()
# What every run does at its beginning, and at its first save.
versions()
provenance.git_commit()
gc.freeze()  # a fork that collects garbage need not walk, and thereby copy, all that was imported
for line in sys.stdin:
    order = json.loads(line)
    process = os.fork()
    if process == 0 and "ranks" in order:
        os.setpgid(0, 0)
        launch(order)
    if process == 0:
        child(order)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
