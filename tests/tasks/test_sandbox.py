"""Real hostile programs in the real sandbox."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import pytest

import trl_prorl.tasks.sandbox
from trl_prorl.tasks.isolated.lockdown import FIRST_UNKNOWN, OPENING, REFUSED
from trl_prorl.tasks.sandbox import (
    ISOLATED,
    Limits,
    Program,
    Sandbox,
    bubblewrap_command,
    python_command,
    run_command,
)


def bubblewrap_works():
    """Whether it makes any sandbox at all here; if it does, ours has to work and is not skipped."""
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--unshare-net", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap is not installed or permitted here")
ONE_SECOND = Limits(cpu_seconds=1, wall_seconds=8.0)


@pytest.fixture(scope="module")
def strong():
    return Sandbox(ONE_SECOND)


@pytest.fixture(scope="module")
def weak():
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning, match="can read every file"):
        patch.setattr(trl_prorl.tasks.sandbox, "find_problem", lambda kind: "none" if kind == "bubblewrap" else None)
        return Sandbox(ONE_SECOND, allow_weak=True)


@pytest.fixture(params=[pytest.param("strong", marks=needs_bubblewrap), "weak"])
def sandbox(request):
    return request.getfixturevalue(request.param)


def outcomes(sandbox, cases):
    """Name -> number of tests passed, for cases of name -> (code, test); run side by side."""
    programs = [Program(code, (test,), "f") for code, test in cases.values()]
    return dict(zip(cases, sandbox.run_many(programs), strict=True))


def outcome(sandbox, code, *tests, entry_point="f", setup=""):
    """Number of tests passed."""
    return sandbox.run(Program(code, tests or ("assert f() == 'done'",), entry_point, setup))


# What passes


RIGHT = [
    ("def f(a, b):\n    return a + b", "assert f(a='x', b='y') == 'xy', 'a message'"),
    ("f = lambda *a: a", "assert f(1, [2], {'k': (3, None)}) == (1, [2], {'k': (3, None)})"),
    ("f = set", "assert f([1, 1, 2]) == {1, 2}"),
    ("f = float", "assert f('inf') > 1e300 and f('nan') != f('nan')"),
    ("f = lambda n: 7 ** n", "assert f(900) == 7 ** 900"),
    ("import re, heapq, math\nf = math.sqrt", "import math\nassert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"),
    ("from collections import Counter as f", "assert f('abca') == {'a': 2, 'b': 1, 'c': 1}"),
    ("from collections import namedtuple\nf = namedtuple('P', 'x y')", "assert f(1, 2) == (1, 2)"),
    ("import enum\nE = enum.IntEnum('E', 'a b')\nf = E", "assert f(2) == 2"),
    ("class S(str):\n    pass\nf = lambda s: {S(s): [S(s)]}", "assert f('x') == {'x': ['x']}"),
    ("def f(n):\n    raise ValueError('no')", "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False"),
    ("f = bytes.decode", "try:\n    f(b'\\xff')\nexcept UnicodeDecodeError:\n    pass\nelse:\n    assert False"),
    ("n = 0\ndef f():\n    global n\n    n += 1\n    return n", "assert f() == 1\nassert f() == 2"),
    ("def f(n):\n    return n\nif __name__ == '__main__':\n    f = None", "assert f(3) == 3"),
    ("def f(n):\n    print(n)\n    return n", "assert f(3) == 3"),
    ("def helper(n):\n    return n + 1\ndef f(n):\n    return helper(n)", "assert helper(f(1)) == 3"),
    ("import os\nf = lambda: sorted(os.environ)", "assert f() == []"),
    # Values compare as in Python.
    ("f = lambda: 0.1 + 0.2", "assert f() == 0.1 + 0.2"),
    ("f = lambda: 3", "assert f() == 3.0"),
    ("f = lambda: -0.0", "assert f() == 0"),
    ("f = lambda: 1j ** 2", "assert f() == -1"),
    ("f = lambda: [3, 1, 2]", "assert sorted(f()) == [1, 2, 3]"),
    ("f = lambda: frozenset([2, 1])", "assert f() == {1, 2}"),
    ("f = lambda: {frozenset([1]): (2, {3})}", "assert f() == {frozenset([1]): (2, {3})}"),
    ("f = lambda: {'b': 1, 'a': 2}", "assert f() == {'a': 2, 'b': 1}"),
    ("f = lambda: 1 < 2", "assert f() is True"),
]


FUNCTIONS = """
import math

def evaluate(xs, x):
    return sum(c * math.pow(x, i) for i, c in enumerate(xs))

class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

def f():
    return 'done'
"""
CHECK = """
def check(candidate):
    for xs in ([1, 2], [-6, 2]):
        assert abs(evaluate(xs, candidate(xs))) < 1e-9

check(root)
"""


@pytest.mark.parametrize(
    "code, test, name, passed",
    [
        ("def root(xs):\n    return -xs[0] / xs[1] + 0 * math.pi", CHECK, "root", 1),
        # The helper of the tests is theirs: redefining it in the code changes nothing.
        ("def evaluate(xs, x):\n    return 0.0\ndef root(xs):\n    return 1.0", CHECK, "root", 0),
        # The code and not the setup is tested.
        ("def f():\n    return 'don'", "assert f() == 'done'", "f", 0),
        # Objects of the setup are arguments.
        ("f = lambda ps: [p.a for p in ps]", "assert f([Pair(1, 2)]) == [1]", "f", 1),
    ],
)
def test_a_setup_is_the_code_s_and_the_tests_(sandbox, code, test, name, passed):
    assert outcome(sandbox, code, test, entry_point=name, setup=FUNCTIONS) == passed


def test_the_number_of_tests_that_pass(sandbox):
    tests = ("assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 27", "assert f(0) == 0", "f(", "f(1, 2)")
    assert outcome(sandbox, "def f(n):\n    return n * n", *tests) == 3


# What is wrong


WRONG = [
    "",
    "def f():\n    return 'don'",
    "def f(:",
    "f = 'done'",
    "def f():\n    return 'done'\nraise ValueError",
    "def f():\n    return 'done'\nimport sys\nsys.exit(0)",
    "def f():\n    return f()",
    "import no_such_module\ndef f():\n    return 'done'",
    "\x00",
    "\ud800",
    "f = " + "(" * 10_000,
    "x = []\nfor _ in range(10**5):\n    x = [x]\nf = lambda: x",
]


# Values that differ in Python.
DIFFERENT = [
    ("0.1 + 0.2", "assert f() == 0.3"),
    ("round(2.675, 2)", "assert f() == 2.68"),
    ("2 ** 53 + 1", "assert f() == float(2 ** 53)"),
    ("1", "assert f() is True"),
    ("[1, 2]", "assert f() == (1, 2)"),
    ("[(1, 2)]", "assert f() == [[1, 2]]"),
    ("[2, 1]", "assert f() == [1, 2]"),
    ("[1, 2]", "assert f() == {1, 2}"),
    ("{'a': 1}", "assert f() == {'a': 1, 'b': None}"),
    ("'a  b'", "assert f() == 'a b'"),
    ("'a\\n'", "assert f() == 'a'"),
    ("'A'", "assert f() == 'a'"),
    ("'3'", "assert f() == 3"),
    ("b'a'", "assert f() == 'a'"),
]


def test_right_code_passes_and_wrong_code_fails(sandbox):
    """Many at a time, one after the other in turn: each gets its own verdict."""
    wrong = [(code, "assert f() == 'done'") for code in WRONG]
    wrong += [(f"f = lambda: {value}", test) for value, test in DIFFERENT]
    cases = [case for pair in zip_longest(RIGHT, wrong) for case in pair if case]
    assert outcomes(sandbox, {case: case for case in cases}) == {case: int(case in RIGHT) for case in cases}


ALWAYS_EQUAL = """
class Chameleon({base}):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __bool__(self):
        return True
    __hash__ = None
    def __reduce_ex__(self, protocol):
        return "done"
def f():
    return Chameleon()
"""
FAKES = {
    "os._exit(0)": "import os\nos._exit(0)",
    "os._exit(0) when called": "import os\ndef f():\n    os._exit(0)",
    "SystemExit when called": "def f():\n    raise SystemExit(0)",
    "printing the answer": "print('ready')\nprint('done')\nprint('ready', flush=True)\ndef f():\n"
    "    print('ready\\nnonce 1')",
    "writing to every descriptor": "import os\nfor n in range(64):\n    try:\n"
    "        os.write(n, b'ready\\n' + b'0' * 32 + b' 1\\n')\n"
    "    except OSError:\n        pass\ndef f():\n    return 'don'",
    "reading every descriptor": "import os\nseen = b''\nfor n in range(3):\n    try:\n"
    "        seen += os.read(n, 4096)\n"
    "    except OSError:\n        pass\ndef f():\n    return seen.decode()[:-1] or 'nothing'",
    "equal to everything": ALWAYS_EQUAL.format(base="object"),
    "a str equal to everything": ALWAYS_EQUAL.format(base="str"),
    "an int equal to everything": ALWAYS_EQUAL.format(base="int"),
    "patched builtins": "import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\n"
    "builtins.compile = lambda *a, **k: (lambda: None).__code__\nbuiltins.exec = lambda *a, **k: None\n"
    "def f():\n    return 'don'",
    "patched main": "import sys\nfor module in list(sys.modules.values()):\n"
    "    for name in ('count_passed', 'Remote', 'MAX_FRAME', 'dumps'):\n"
    "        if hasattr(module, name):\n            setattr(module, name, lambda *a: 1)\ndef f():\n    return 'done!'",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "patched test names": "import sys\nfor frame in sys._current_frames().values():\n    while frame:\n"
    "        frame.f_globals.update(done=1, tests=[], f=lambda: 'done')\n        frame = frame.f_back\n"
    "def f():\n    return 'don'",
    "a nameless exception": "class done(BaseException):\n    pass\ndef f():\n    raise done",
}


def test_a_pass_cannot_be_faked(sandbox):
    for test in ("assert f() == 'done'", "assert not f() != 'done'"):
        assert outcomes(sandbox, {name: (code, test) for name, code in FAKES.items()}) == dict.fromkeys(FAKES, 0)


EXPLOIT = """
import os, sys
frame = sys._getframe()
while frame:
    replies = frame.f_locals.get("replies")
    if replies:
        payload = b'cbuiltins\\nexec\\n(S"import __main__; __main__.Remote.__call__ = lambda self: \\'done\\'"\\ntR.'
        # Twice, because the first reply only says that the code has been read.
        os.write(replies, 2 * (len(payload).to_bytes(4, "big") + payload))
    frame = frame.f_back
def f():
    return "don"
"""


def test_a_reply_cannot_run_in_the_tests_process(sandbox, monkeypatch):
    test = (
        "for _ in range(3):\n    try:\n        last = f()\n    except Exception:\n        pass\nassert last == 'done'"
    )
    assert outcome(sandbox, EXPLOIT, test) == 0
    assert outcome(sandbox, EXPLOIT, test.replace("'done'", "'don'")) == 1


SEARCH = """
import gc, sys
def texts(thing, depth=0):
    if isinstance(thing, (str, bytes)):
        yield thing if isinstance(thing, str) else thing.decode("latin1")
    elif depth < 6:
        try:
            parts = list(thing.items()) if isinstance(thing, dict) else list(thing)
        except Exception:
            parts = list(getattr(thing, "__dict__", {}).values())
        for part in parts:
            yield from texts(part, depth + 1)
def f(needle):
    frame, found = sys._getframe(), []
    while frame:
        found += [t for t in texts(frame.f_locals) if needle in t]
        found += [t for t in texts(frame.f_globals) if needle in t]
        frame = frame.f_back
    for thing in gc.get_objects():
        found += [t for t in texts(thing, 4) if needle in t]
    return [t for t in found if t.count(needle) and t != needle and "SEA" + "RCH" not in t]
"""


def test_neither_the_tests_nor_the_nonce_are_in_the_codes_memory(sandbox):
    # The needle is spelled so that the argument alone does not contain the test's text.
    test = "found = f('expected' + '_marker')\nassert found == [], found\n'expected_marker'"
    assert outcome(sandbox, SEARCH, test) == 1
    # The search does find what is there.
    assert outcome(sandbox, SEARCH + "here = 'an expected_marker here'", test) == 0


def test_the_nonce_is_another_each_time(monkeypatch, weak):
    nonces = []
    token_hex = trl_prorl.tasks.sandbox.secrets.token_hex
    monkeypatch.setattr(
        trl_prorl.tasks.sandbox.secrets, "token_hex", lambda n: nonces.append(token_hex(n)) or nonces[-1]
    )
    for _ in range(2):
        outcome(weak, "def f():\n    return 'done'")
    assert len(set(nonces)) == 2
    assert all(len(nonce) == 32 for nonce in nonces)


@pytest.mark.parametrize("end", ["", "echo 3", "echo 00000000000000000000000000000000 3", "echo 3 3", "echo ready"])
def test_no_pass_without_the_nonce(end):
    command = ["sh", "-c", f"cat > /dev/null; echo ready; {end}"]
    assert run_command(command, False, ONE_SECOND, Program("", ("", "", ""), "f")) == 0


@pytest.mark.parametrize("start, wall, own", [(1.0, 0.5, 0.0), pytest.param(1.5, 2.0, 1.0, marks=pytest.mark.slow)])
def test_the_start_does_not_count_against_the_code(start, wall, own):
    limits = Limits(wall_seconds=wall)
    right = Program(f"import time\ndef f():\n    time.sleep({own})\n    return 1", ("assert f() == 1",), "f")
    python = python_command(Path(os.path.realpath(sys.executable)), ISOLATED)
    assert run_command(["sh", "-c", f"sleep {start}; exec {shlex.join(python)}"], False, limits, right) == 1


# What is stopped: each program tries, and says "stopped" only if it was refused.

TRY = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading
def f(*given):
    try:
        BODY
    except BaseException as error:
        return "stopped"
    return "succeeded"
"""
STOPPED = {
    "fork": "os.fork() or os._exit(0)",
    "thread": "threading.Thread(target=print).start()",
    "subprocess": "subprocess.run([sys.executable, '-c', '0'], check=True)",
    "exec": "os.execv(sys.executable, ['python', '-c', '0'])",
    "shell": "1 / (os.system('true') == 0)",
    "inet socket": "socket.socket()",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "kill the tests": "os.kill(os.getppid(), signal.SIGKILL)",
    "kill everything": "os.kill(-1, signal.SIGKILL)",
    "a session of its own": "os.setsid()",
    "write /tmp": "open('/tmp/sandbox-was-here', 'w').close()",
    "write where it is": "open('sandbox-was-here', 'w').close()",
    "write the harness": "open('/isolated/harness.py', 'a').close()",
    "remove": "os.remove(os.__file__)",
    "make a folder": "os.mkdir('/tmp/sandbox-was-here')",
    "change a mode": "os.chmod(sys.executable, 0o777)",
    "become root": "os.setuid(0) or 1 / (os.getuid() == 0)",
    "a namespace": "1 / (ctypes.CDLL(None).unshare(0x10000000) == 0)",
    "trace the tests": "1 / (ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0)",
    "shared memory": "1 / (ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0)",
    "memory file": "os.memfd_create('x')",
    "more memory": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "memory bomb": "bytearray(2**30)",
    "many files": "[os.pipe() for _ in range(100)]",
}
# What only bubblewrap stops.
HIDDEN = {
    "/proc": "os.listdir('/proc')",
    "/etc/passwd": "open('/etc/passwd').read()",
    "/home": "os.listdir('/home')",
    "/tmp": "os.listdir('/tmp')",
    "the project": f"open({str(Path(__file__).resolve())!r}).read()",
    "the home folder": f"1 / (not set(os.listdir({str(Path.home())!r})) <= {{'.pyenv', '.local'}})",
    "other processes": "1 / (os.getppid() >= 10)",
    "the machine's name": "1 / (os.uname().nodename != 'sandbox')",
    "another user": "1 / (not (os.getuid() == os.getgid() == 65534 and os.getgroups() in ([], [65534])))",
}


def tried(body):
    """A function that tries this, and says whether it was refused: by an error, or by a division by zero."""
    return TRY.replace("BODY", body)


def attempts(sandbox, programs):
    """Name -> "stopped" or "succeeded" """
    cases = {name: (tried(body), "assert f() == 'stopped'") for name, body in programs.items()}
    return {name: "stopped" if passed else "succeeded" for name, passed in outcomes(sandbox, cases).items()}


def test_stopped(sandbox):
    programs = dict(STOPPED)
    if sandbox.isolation == "weak" and os.getuid() == 0:
        # It stays root there, because the interpreter may lie in a folder that is closed to others.
        del programs["become root"]
    assert attempts(sandbox, programs) == dict.fromkeys(programs, "stopped")
    assert not Path("/tmp/sandbox-was-here").exists()
    assert not Path("/sandbox-was-here").exists()


@needs_bubblewrap
def test_hidden(strong, tmp_path):
    (tmp_path / "secret.txt").write_text("file secret")
    (tmp_path / "secret.txt").chmod(0o644)
    programs = HIDDEN | {"a secret": f"open({str(tmp_path / 'secret.txt')!r}).read()"}
    assert attempts(strong, programs) == dict.fromkeys(programs, "stopped")


def test_the_attempts_would_succeed_outside():
    # What is "stopped" for another reason, such as a typing error, would prove nothing.
    harmless = "fork|thread|subprocess|shell|inet socket|unix socket|shared memory|memory file|memory bomb"
    for attempt in harmless.split("|"):
        code = tried(STOPPED[attempt]) + "\nprint(f())"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.split()[-1] == "succeeded", attempt


@pytest.fixture
def hurried(sandbox):
    """The sandbox with little time by the clock."""
    limits = sandbox.limits
    sandbox.limits = Limits(wall_seconds=1.5)
    yield sandbox
    sandbox.limits = limits


def test_sleeping_ends_by_the_clock(hurried):
    assert outcome(hurried, "import time\ndef f():\n    time.sleep(5)\n    return 'done'") == 0


ENDLESS = [
    "def f():\n    while True:\n        try:\n            pass\n        except BaseException:\n            pass",
    "def f():\n    return 'x' * 10**8",
    "def f():\n    return [[0] * 10**6] * 100",
    "def f():\n    while True:\n        print('x' * 10**6)",
    "import sys\nwhile True:\n    sys.stderr.write('x' * 10**6)",
    "x = []\nwhile True:\n    x.append(bytearray(10**7))",
]


def test_endless_loops_and_huge_output_and_memory_end(sandbox):
    assert outcomes(sandbox, {code: (code, "assert f() == 'done'") for code in ENDLESS}) == dict.fromkeys(ENDLESS, 0)


def processes_with(marker):
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [command.parent.name] if marker in command.read_bytes() else []
    return found


@pytest.fixture
def own_harness(tmp_path, monkeypatch):
    """The harness under a name that no other test's has: it is on the command line of all its forks."""
    name = f"harness-{uuid.uuid4().hex}.py"
    shutil.copytree(ISOLATED, tmp_path / "isolated")
    (tmp_path / "isolated" / "harness.py").rename(tmp_path / "isolated" / name)
    monkeypatch.setattr(trl_prorl.tasks.sandbox, "ISOLATED", tmp_path / "isolated")
    monkeypatch.setattr(trl_prorl.tasks.sandbox, "HARNESS", name)
    return name.encode()


def test_no_process_is_left_behind(hurried, own_harness):
    bomb = (
        "import os, threading, subprocess, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "thread = threading.Thread(target=print).start\n"
        "for start in (os.fork, os.setsid, thread, lambda: subprocess.Popen(['sleep', '99'])):\n"
        "    try:\n        start()\n    except BaseException:\n        pass\nimport time\ntime.sleep(1000)\n"
    )
    seen = []
    with ThreadPoolExecutor(1) as beside:
        run = beside.submit(outcome, hurried, bomb)
        while not run.done():
            seen += processes_with(own_harness)
            time.sleep(0.05)
    assert run.result() == 0
    deadline = time.monotonic() + 10
    while processes_with(own_harness) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_with(own_harness)
    assert seen


# Each wall on its own


def in_bubblewrap_alone(script):
    command = bubblewrap_command(Path(os.path.realpath(sys.executable)), os.geteuid() == 0)[:-1] + ["-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.split()


@needs_bubblewrap
def test_bubblewrap_alone_hides_the_network():
    script = "import socket\ns = socket.socket()\nprint('alive', s.connect_ex(('127.0.0.1', {})))"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert in_bubblewrap_alone(script.format(port))[0] == "alive"
        assert in_bubblewrap_alone(script.format(port))[1] != "0"
        assert socket.socket().connect_ex(("127.0.0.1", port)) == 0
    assert in_bubblewrap_alone("import socket\nprint(*[name for _, name in socket.if_nameindex()])") == ["lo"]


@needs_bubblewrap
def test_bubblewrap_alone_hides_the_environment_and_other_processes_and_cannot_be_written():
    assert set(in_bubblewrap_alone("import os\nprint(*os.environ)")) <= {"PWD", "PYTHONHASHSEED", "LC_CTYPE"}
    assert int(in_bubblewrap_alone("import os\nprint(os.getpid())")[0]) < 10
    # As root it is still root here, before the harness becomes nobody.
    script = (
        "import os, sys\nfor folder in ('/', '/isolated', '/dev', os.path.dirname(os.__file__)):\n    try:\n"
        "        open(folder + '/x', 'w')\n        print('written', folder)\n    except OSError:\n"
        "        print('refused')"
    )
    assert in_bubblewrap_alone(script) == ["refused"] * 4


@pytest.mark.parametrize(
    "steps, action, refused",
    [
        ("no_more_processes()", "os.fork() or os._exit(0)", True),
        ("refuse_system_calls()", "os.fork() or os._exit(0)", True),
        ("limit(256)", "bytearray(2**29)", True),
        ("limit(256)", "open(path, 'w').write('x' * 10**6)", True),
        ("", "open(path, 'w').write('x' * 10**6)", False),
        ("refuse_system_calls()", "open(path)", False),
        ("refuse_system_calls()", "open(path, 'r+')", True),
        ("refuse_system_calls()", "os.open(path, os.O_RDONLY | os.O_CREAT)", True),
        ("refuse_system_calls()", "os.open(path, os.O_RDONLY | os.O_TRUNC)", True),
        # Whether others may read its memory.
        ("", "ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1 or os._exit(1)", False),
        ("hide_memory()", "ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0 or os._exit(1)", False),
    ],
)
def test_each_step_of_the_lockdown(steps, action, refused, tmp_path):
    (tmp_path / "file").write_text("")
    become = "become_nobody(); " if os.geteuid() == 0 and "processes" in steps else ""
    script = (
        f"import ctypes, os, sys, threading\nsys.path.insert(0, {str(ISOLATED)!r})\nfrom lockdown import *\n"
        f"path = {str(tmp_path / 'file')!r}\n{become}{steps}\n"
        f"try:\n    {action}\nexcept (OSError, MemoryError, RuntimeError):\n    print('refused')\nelse:\n"
        "    print('done')"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["refused" if refused else "done"]


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_of_the_system_calls(machine):
    if not Path(HEADERS[machine]).exists():
        pytest.skip("needs the kernel's headers (linux-libc-dev)")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(HEADERS[machine]).read_text())
    numbers = {name: int(number) for name, number in defined}
    opening = {name: number for name, (number, _) in OPENING[machine].items()}
    ours = REFUSED[machine] | opening
    assert {name: numbers.get(name, number) for name, number in ours.items()} == ours
    assert len(numbers) > 250
    assert FIRST_UNKNOWN > max(REFUSED[machine].values())


# Failure


def test_a_sandbox_that_stops_working_is_an_error_and_not_a_verdict(monkeypatch, weak):
    monkeypatch.setattr(trl_prorl.tasks.sandbox, "ISOLATED", ISOLATED / "nowhere")
    with pytest.raises(RuntimeError, match="did not start.*No such file"):
        outcome(weak, "def f():\n    return 'done'")
