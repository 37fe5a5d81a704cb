"""The loop of a helper process: one JSON object per line in, one JSON object per line out."""

import json
import os
import signal
import sys
from collections.abc import Callable

from lockdown import limit, refuse_system_calls


def answer_lines(answer: Callable[[dict], dict], memory_mib: int, seconds: int) -> None:
    """
    Isolate this process, and answer requests until the input ends. An exception gives an empty answer.

    Args:
        answer (`Callable[[dict], dict]`): computes the answer to a request.
        memory_mib (`int`): limit of the address space.
        seconds (`int`): time limit for one request, after which the kernel kills the process, in case its owner is
            gone.
    """
    # Libraries may print, but only answers may reach the pipe.
    output = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    limit(memory_mib)
    refuse_system_calls()
    print(json.dumps({"ready": True}), file=output, flush=True)
    os.dup2(nowhere, 2)
    for line in sys.stdin:
        signal.alarm(seconds)
        try:
            reply = answer(json.loads(line))
        except Exception:
            reply = {}
        signal.alarm(0)
        print(json.dumps(reply), file=output, flush=True)
