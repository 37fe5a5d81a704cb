"""The loop of a helper process: a JSON object a line in, a JSON object a line out."""

import json
import os
import signal
import sys
from collections.abc import Callable

from lockdown import limit, refuse_system_calls


def answer_lines(answer: Callable[[dict], dict], memory_mib: int, seconds: int) -> None:
    """
    Lock this process up and answer until the input ends; an exception gives an empty answer.

    Args:
        answer (`Callable[[dict], dict]`): makes an answer of a request.
        memory_mib (`int`): address space.
        seconds (`int`): limit for one request, after which the kernel ends the process if its owner is gone and has
            not.
    """
    # Only answers may reach the pipe, whatever a library prints.
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
