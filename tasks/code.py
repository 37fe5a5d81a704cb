"""Write short Python functions, tested in a sandbox."""

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from random import Random

from trl_prorl.tasks.base import check_choice
from trl_prorl.tasks.code_templates import sample_function
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.loaded import LoadedTask, Problem, level_of, need
from trl_prorl.tasks.sandbox import Program, Sandbox
from trl_prorl.text import one_line, short


REWARDS = ("exact", "share")
INSTRUCTION = "Answer with the Python code in one fenced block."
# An unclosed block extends to the end of the text, because the closing fence may be a stop string.
FENCED = re.compile(r"^[ \t]*(`{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)


def extract_code(completion: str, entry_point: str = "") -> str:
    """
    Return the last fenced block that defines the function, or else the last block, or else the entire completion. An
    example or its output may follow the solution. A block in a list item may be indented.
    """
    blocks = [dedented(block.group(2)) for block in FENCED.finditer(completion)]
    name = re.escape(entry_point)
    definition = re.compile(rf"^(?:(?:async +)?def|class) +{name}\b|^{name}(?: *:[^=\n]*| *)=(?!=)", re.MULTILINE)
    defining = [block for block in blocks if entry_point and definition.search(block)]
    return (defining or blocks or [completion])[-1]


def dedented(code: str) -> str:
    """
    Remove common indentation. Only indented code is changed, because `dedent` also empties lines of spaces.
    """
    return textwrap.dedent(code) if code[:1] in (" ", "\t") else code


def parse_problem(row: Mapping, source: str) -> Problem:
    """
    Convert a row with `prompt`, `tests` (a list of statements), `entry_point` (the name of the function under test)
    and optionally `setup` (statements that run before the code and before the tests) and `solution`.

    Raises:
        `ValueError`: If the row has another form, or setup or tests are not Python.
    """
    prompt = need(row, ["prompt"], str, source)
    tests = need(row, ["tests"], list, source)
    entry_point = need(row, ["entry_point"], str, source)
    setup, solution = (row.get(key) or "" for key in ("setup", "solution"))
    if not isinstance(solution, str):
        raise ValueError(f"{source}: 'solution' is {short(solution)}. It must be text")
    for place, code in {"'setup'": setup, **{f"'tests', number {n}": test for n, test in enumerate(tests)}}.items():
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, TypeError) as error:
            reason = one_line(error)
            raise ValueError(f"{source}: {place} is {short(code)}, which is not Python: {reason}") from error
    columns = {"tests": tests, "entry_point": entry_point, "setup": setup}
    return Problem(prompt, solution, columns, f"{prompt.strip()}\n{INSTRUCTION}")


class Code(LoadedTask, GeneratedTask):
    """
    Write a Python function that passes unit tests.

    Without a path the functions are generated: level L, 1 to 8, has L steps on a list of numbers or words, and a final
    step. The code is the last fenced block that defines the function, or the entire completion. It runs in a
    [`~trl_prorl.tasks.sandbox.Sandbox`].

    Args:
        level (`int`, *optional*): difficulty of the generated functions, from 1 to 8; by default 3. Not with a path.
        path (`str`, *optional*): a JSON Lines file, or a folder with `train.jsonl` and `test.jsonl`; see
            [`parse_problem`].
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` (all tests or nothing) or `"share"` (the share of
            tests that pass).
        allow_weak_sandbox (`bool`, *optional*, defaults to `False`): run without bubblewrap if it does not work here.

    Raises:
        `ValueError`: If an option has an invalid value, the file has another form, or no sandbox is available.
    """

    name = "code"

    def __init__(
        self,
        level: int | None = None,
        path: str | None = None,
        reward: str = "exact",
        allow_weak_sandbox: bool = False,
    ):
        super().__init__(level_of(level, path))
        check_choice("reward", reward, REWARDS)
        if not isinstance(allow_weak_sandbox, bool):
            raise ValueError(f"allow_weak_sandbox={allow_weak_sandbox!r} must be true or false")
        self._reward = reward
        self.load(path, parse_problem)
        self._sandbox = Sandbox(allow_weak=allow_weak_sandbox)
        self._passed: dict[Program, int] = {}  # results of the last batch, which both reward and verifier need

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        text, entry_point, source, tests = sample_function(rng, self.level)
        return f"{text}\n{INSTRUCTION}", source, {"tests": tests, "entry_point": entry_point, "setup": ""}

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
        """Return the share of its row's tests that each completion passes. Programs run in parallel."""
        programs = []
        for completion, row in zip(completions, rows, strict=True):
            name = row["entry_point"]
            code = extract_code(completion, name)
            programs.append(Program(code, tuple(row["tests"]), name, row.get("setup") or ""))
        # Skip texts without the function's name, which cannot define it, and duplicates.
        to_run = list(dict.fromkeys(program for program in programs if program.entry_point in program.code))
        if not self._passed.keys() >= set(to_run):
            passed = self._sandbox.run_many(to_run)
            self._passed = dict(zip(to_run, passed, strict=True))
        return [self._passed.get(program, 0) / len(program.tests) for program in programs]

    def gold(self, row: Mapping) -> str:
        return f"```python\n{row['answer']}\n```"
