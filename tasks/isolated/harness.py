"""
Run tests against code inside a sandbox: the tests in one process, the code in another.

The process with the tests calls the code over a pipe, and only plain values come back. So the code cannot cheat: the
tests and the nonce are never in its memory, a custom `__eq__` does not pass the pipe, and the code cannot patch the
`assert` statements.

Standard input contains two frames (4 bytes of length, big endian, then a pickle). The first is for the code's process:
setup, code, memory limit (MiB), time limit (s), and whether to give up root. The second, read after the fork, is for
the tests' process only: tests, entry point, nonce. Standard output gets `ready`, and at the end a line with the nonce
and the number of passed tests.
"""

import builtins
import os
import sys
from _pickle import Unpickler, UnpicklingError, dumps, loads  # `pickle` would take three times as long to import
from io import BytesIO

from lockdown import become_nobody, die_with_parent, hide_memory, limit, no_more_processes, refuse_system_calls


MAX_FRAME = 2**24
MODULE = "solution"
PROTOCOL = 5  # the first protocol that pickles a bytearray without naming its class
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)


class PlainUnpickler(Unpickler):
    """Unpickle built-in containers and values, but no classes or functions."""

    def find_class(self, module, name):
        if (module, name) == ("builtins", "complex"):
            return complex
        raise UnpicklingError(f"{module}.{name} is not a plain value")


def read_frame(descriptor: int) -> bytes:
    """Read exactly one frame. Raise `EOFError` at the end of the input, and if the frame is too long."""
    size = int.from_bytes(read_exactly(descriptor, 4), "big")
    if size > MAX_FRAME:
        raise EOFError(f"a frame of {size} bytes")
    return read_exactly(descriptor, size)


def read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 2**16))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_frame(descriptor: int, payload: bytes) -> None:
    data = memoryview(len(payload).to_bytes(4, "big") + payload)
    while data:
        data = data[os.write(descriptor, data) :]


def plain(value):
    """
    Convert a value to built-in types; instances of subclasses become the built-in type. Raise `TypeError` for anything
    else.
    """
    for kind in PLAIN:
        if isinstance(value, kind):
            # Call the built-in type, not a method of the subclass.
            return value if type(value) is kind else kind(value)
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(plain(part) for part in value)
    if isinstance(value, dict):
        return {plain(key): plain(part) for key, part in value.items()}
    raise TypeError(f"{type(value).__name__} is not a plain value")


def new_module(setup: str) -> dict:
    """Run `setup` in a new module and return its namespace. Classes defined there can be pickled."""
    module = type(sys)(MODULE)
    sys.modules[MODULE] = module
    exec(compile(setup, "<setup>", "exec"), module.__dict__)
    return module.__dict__


def serve(setup: str, code: str, requests: int, replies: int) -> None:
    """Run the code, then call its functions on request until the pipe closes."""
    no_more_processes()
    refuse_system_calls()
    try:
        namespace = new_module(setup)
        exec(compile(code, "<code>", "exec"), namespace)
    finally:
        write_frame(replies, b"")
    while True:
        name, arguments, options = loads(read_frame(requests))
        try:
            reply = (True, plain(namespace[name](*arguments, **options)))
        except BaseException as error:
            reply = (False, type(error).__name__)
        write_frame(replies, dumps(reply, PROTOCOL))


class Remote:
    """A function of the code, as the tests see it."""

    def __init__(self, name: str, requests: int, replies: int):
        self.name = name
        self.requests = requests
        self.replies = replies

    def __call__(self, *arguments, **options):
        write_frame(self.requests, dumps((self.name, arguments, options), PROTOCOL))
        succeeded, value = PlainUnpickler(BytesIO(read_frame(self.replies))).load()
        if succeeded is True:
            return value
        kind = getattr(builtins, value, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind.__new__(kind)  # some exceptions cannot be created without arguments
        raise RuntimeError(value)


def names_of(code) -> set[str]:
    """Return the global names (and attributes) that a code object uses, including its inner functions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            names |= names_of(constant)
    return names


def count_passed(setup: str, tests: list[str], entry_point: str, requests: int, replies: int) -> int:
    """
    Return the number of tests that finish without an exception. Names that neither the setup nor Python defines are
    functions of the code.
    """
    namespace = new_module(setup)
    namespace[entry_point] = Remote(entry_point, requests, replies)
    passed = 0
    for test in tests:
        try:
            program = compile(test, "<test>", "exec")
            for name in names_of(program) - namespace.keys() - set(dir(builtins)):
                namespace[name] = Remote(name, requests, replies)
            exec(program, namespace)
            passed += 1
        except BaseException:
            continue
    return passed


def main() -> None:
    os.environ.clear()
    sys.path.pop(0)  # the folder of this script, from which `lockdown` was imported
    setup, code, memory_mib, cpu_seconds, drop_root = loads(read_frame(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    answer = os.dup(1)
    requests_out, requests_in = os.pipe()
    replies_out, replies_in = os.pipe()
    if drop_root:
        become_nobody()
    hide_memory()
    limit(memory_mib, cpu_seconds)
    child = os.fork()
    if child == 0:
        # Close everything of the tests' side, above all standard input, where the nonce will arrive.
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        for descriptor in (nowhere, answer, requests_in, replies_out):
            os.close(descriptor)
        try:
            die_with_parent()
            serve(setup, code, requests_out, replies_in)
        finally:
            os._exit(0)
    for descriptor in (requests_out, replies_in):
        os.close(descriptor)
    tests, entry_point, nonce = loads(read_frame(0))
    os.write(answer, b"ready\n")
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    passed = 0
    try:
        read_frame(replies_out)
        passed = count_passed(setup, tests, entry_point, requests_in, replies_out)
    finally:
        os.kill(child, 9)
        os.write(answer, f"{nonce} {passed}\n".encode())
        os._exit(0)


if __name__ == "__main__":
    main()
