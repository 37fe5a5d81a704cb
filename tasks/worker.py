"""A helper process that answers one request at a time, and is killed if an answer takes too long."""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path


START_SECONDS = 120.0
KEPT_ANSWERS = 4096
PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


class Worker:
    """
    A script that reads JSON objects from its standard input, one per line, and writes one JSON object for each; its
    first line is `{"ready": true}`.

    It starts at the first request and serves threads in turn. It is restarted after it was killed, and in a forked
    process. It ends with this process, because its input ends.

    Args:
        script (`Path`): file of the script.
        seconds (`float`): time limit for one answer.
    """

    def __init__(self, script: Path, seconds: float):
        self.script = script
        self.seconds = seconds
        self._process: subprocess.Popen | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._unread = b""
        self._known: dict[bytes, dict] = {}  # reward and verifier send the same requests for a batch

    def ask(self, request: dict, seconds: float | None = None) -> dict | None:
        """
        Return the answer; `None` if it took too long or the process died.

        Raises:
            `RuntimeError`: If the process does not start.
        """
        if self._owner != os.getpid():
            self.__init__(self.script, self.seconds)
        text = json.dumps(request).encode("ascii")  # ASCII, so that any text arrives unchanged, even a lone surrogate
        with self._lock:
            if text in self._known:
                return self._known[text]
            if self._process is None:
                self._start()
            with suppress(OSError):  # the process has died; reading then returns None
                self._process.stdin.write(text + b"\n")
                self._process.stdin.flush()
            line = self._read_line(self.seconds if seconds is None else seconds)
            if line is None:
                self._stop()
                return None
            if len(self._known) >= KEPT_ANSWERS:
                self._known.clear()
            self._known[text] = json.loads(line)
            return self._known[text]

    def close(self) -> None:
        """End the process, if this process owns it. The next request starts a new one."""
        atexit.unregister(self.close)
        if self._owner == os.getpid() and self._process is not None:
            self._stop()

    def _start(self) -> None:
        # A fixed hash seed gives sets a fixed order. Threads of a linear algebra library would only use memory.
        env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, str(self.script)], env=env, **PIPES)
        if self._read_line(START_SECONDS) is None:
            errors = self._stop().decode("utf-8", "replace").split("\n")
            reason = " ".join(errors[-2:]).strip() or f"no answer within {START_SECONDS:g} s"
            raise RuntimeError(f"{self.script.name} did not start: {reason}")
        atexit.register(self.close)

    def _stop(self) -> bytes:
        """End the process, and return its standard error."""
        self._process.kill()
        errors = self._process.communicate()[1]
        self._process = None
        self._unread = b""
        return errors

    def _read_line(self, seconds: float) -> bytes | None:
        """Return the next line; `None` at the end of the output or after the time limit."""
        deadline = time.monotonic() + seconds
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            part = os.read(descriptor, 2**16)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line
