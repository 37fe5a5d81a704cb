"""Short Python functions, tested in a sandbox."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from random import Random

from trl_prorl.tasks.base import check_choice, check_integer
from trl_prorl.tasks.code_formats import INSTRUCTION, parse_problem
from trl_prorl.tasks.code_templates import sample_function
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.loaded import LoadedTask
from trl_prorl.tasks.sandbox import Limits, Program, Sandbox


REWARDS = ("exact", "share")
# An unclosed fence ends with the text, because the closing fence may be a stop string.
FENCED = re.compile(r"^[ \t]*(`{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)


def extract_code(completion: str, entry_point: str = "") -> str:
    """
    Return the last fenced block of a completion that defines the function, else the last block; the whole completion
    if there is none. An example or its output may follow the solution. A block in a list item is indented as a whole.
    """
    blocks = [dedented(block.group(2)) for block in FENCED.finditer(completion)]
    name = re.escape(entry_point)
    definition = re.compile(rf"^(?:(?:async +)?def|class) +{name}\b|^{name}(?: *:[^=\n]*| *)=(?!=)", re.MULTILINE)
    defining = [block for block in blocks if entry_point and definition.search(block)]
    return (defining or blocks or [completion])[-1]


def dedented(code: str) -> str:
    """
    Return code without the indentation that all its lines share. `dedent` empties lines of spaces, so it gets indented
    code only.
    """
    return textwrap.dedent(code) if code[:1] in (" ", "\t") else code


class Code(LoadedTask, GeneratedTask):
    """
    Write a Python function that passes unit tests.

    Without a path the functions are generated: level L, 1 to 8, has L steps on a list of numbers or on words, and a
    last step. The code is the last fenced block of a completion that defines the function, or the whole completion; it
    runs in a [`~trl_prorl.tasks.sandbox.Sandbox`].

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty of the generated functions, from 1 to 8.
        path (`str`, *optional*): a file of JSON Lines, or a folder with `train.jsonl` and `test.jsonl`, in the form of
            MBPP, of HumanEval, or with `prompt` and `tests`; see `tasks/code_formats.py`.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` (all tests or nothing) or `"share"` (the share of
            tests that pass).
        seconds (`int`, *optional*, defaults to `2`): processor time of a run; the limit of wall-clock time is three
            times that.
        memory_mib (`int`, *optional*, defaults to `512`): memory of a run.
        allow_weak_sandbox (`bool`, *optional*, defaults to `False`): run without bubblewrap where it does not work.
        workers (`int`, *optional*): runs at a time; by default as many as there are processors.

    Raises:
        `ValueError`: if an option has an impossible value, if the file is not as described, or if there is no sandbox.
    """

    name = "code"

    def __init__(
        self,
        level: int = 3,
        path: str | None = None,
        reward: str = "exact",
        seconds: int = 2,
        memory_mib: int = 512,
        allow_weak_sandbox: bool = False,
        workers: int | None = None,
    ):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        for name, value in {"seconds": seconds, "memory_mib": memory_mib, "workers": workers or 1}.items():
            check_integer(name, value, least=1)
        self._reward = reward
        self.load(path, parse_problem)
        self._sandbox = Sandbox(Limits(seconds, 3.0 * seconds, memory_mib), allow_weak_sandbox, workers)
        self._passed: dict[Program, int] = {}  # of the last batch, which a reward and a verifier both ask for

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        function = sample_function(rng, self.level)
        pairs = zip(function.arguments, function.results, strict=True)
        tests = [f"assert {function.entry_point}({argument!r}) == {result!r}" for argument, result in pairs]
        columns = {"tests": tests, "entry_point": function.entry_point, "setup": ""}
        return f"{function.text}\n{INSTRUCTION}", function.source, columns

    def content(self, prompt: str) -> str:
        # The same function under another name is the same question.
        return prompt.partition(". ")[2]

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        return extract_code(completion, row["entry_point"]) or None

    def verify(self, completion: str, row: Mapping) -> bool:
        return self.verify_many([completion], [row])[0]

    def reward(self, completion: str, row: Mapping) -> float:
        return self.reward_many([completion], [row])[0]

    def verify_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[bool]:
        return [share == 1.0 for share in self.shares(completions, rows)]

    def reward_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[float]:
        shares = self.shares(completions, rows)
        if self._reward == "share":
            return shares
        return [float(share == 1.0) for share in shares]

    def shares(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[float]:
        """Return the share of its row's tests that each completion passes; several run at a time."""
        programs = []
        for completion, row in zip(completions, rows, strict=True):
            name = row["entry_point"]
            code = extract_code(completion, name)
            programs.append(Program(code, tuple(row["tests"]), name, row.get("setup") or ""))
        # A text without the function's name cannot define it, and the same program need not run twice.
        to_run = list(dict.fromkeys(program for program in programs if program.entry_point in program.code))
        if not self._passed.keys() >= set(to_run):
            passed = self._sandbox.run_many(to_run)
            self._passed = dict(zip(to_run, passed, strict=True))
        return [self._passed.get(program, 0) / len(program.tests) for program in programs]

    def gold(self, row: Mapping) -> str:
        return f"```python\n{row['answer']}\n```"
