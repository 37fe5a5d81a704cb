"""
Does a test find each defect of tests/mutants.yaml? `make mutants`, or `python scripts/core_mutants.py --only kl-sign`.

This process imports the libraries once, but nothing of trl_prorl, and forks for each defect. The fork imports the
changed source in place of the file, and runs the tests that should find it. The checkout stays as it is. The exit
status is 1 if these tests pass, if a file does not have the text once, or if a test fails without a defect. If the
tests pass, the fork runs the whole suite, which takes long, and prints whether another test finds the defect.
"""

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

import yaml


QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "OMP_NUM_THREADS": "1",
}
ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.yaml"
SUITE = ["tests"]
NO_DEFECT = "no-defect"
BY_ANOTHER_WAY = ("hand", "enumeration", "TRL")
LINES_SHOWN = 20  # of the output of tests that did not run to their end


@dataclass(frozen=True)
class Mutant:
    """A defect; mutants.yaml describes the fields."""

    name: str
    file: str
    text: str
    replacement: str
    tests: list[str]
    by: str

    def changed_source(self) -> str:
        """Raises `ValueError`: the file does not have the text exactly once."""
        source = (ROOT / self.file).read_text()
        count = source.count(self.text)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {count} times: {self.text!r}")
        return source.replace(self.text, self.replacement)


class FirstFailure:
    """A plugin of pytest that notes the first test that fails."""

    def __init__(self):
        self.test = ""

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.test:
            self.test = report.nodeid


def read_mutants() -> list[Mutant]:
    return [Mutant(**entry) for entry in yaml.safe_load(LIST.read_text())]


def import_libraries() -> None:
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # see trl_prorl/cli/quiet.py
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import pytest  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM  # noqa: F401
    from trl import GRPOConfig, GRPOTrainer  # noqa: F401

    torch.set_num_threads(1)
    if "trl_prorl" in sys.modules:
        raise RuntimeError("trl_prorl is imported, so forks would not import a changed source")
    gc.freeze()  # a fork that collects garbage need not copy what was imported


def substitute(file: Path, source: str) -> None:
    """Let this process import a source in place of a file and its cached bytecode."""
    get_code = SourceFileLoader.get_code

    def get_changed_code(loader, name):
        if Path(loader.path).resolve() == file:
            return compile(source, loader.path, "exec", dont_inherit=True)
        return get_code(loader, name)

    SourceFileLoader.get_code = get_changed_code


def run_tests(tests: list[str]) -> tuple[int, str]:
    """Return pytest's exit code, and the first test that failed."""
    import pytest

    failure = FirstFailure()
    code = pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=[failure])
    return int(code), failure.test


def work(mutant: Mutant | None, tests: list[str], folder: Path) -> None:
    """Write `outcome.json` into a folder: how the tests ended, and if they passed, how the suite did."""
    start = time.perf_counter()
    outcome = {}
    if mutant is not None:
        substitute(ROOT / mutant.file, mutant.changed_source())
    outcome["code"], outcome["test"] = run_tests(tests)
    outcome["seconds"] = time.perf_counter() - start
    if mutant is not None and outcome["code"] == 0:
        _, outcome["other_test"] = run_tests(SUITE)
    (folder / "outcome.json").write_text(json.dumps(outcome))


def start_fork(mutant: Mutant | None, tests: list[str], folder: Path) -> int:
    """Return the process id of a fork that works."""
    folder.mkdir()
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    try:
        with open(folder / "output", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        work(mutant, tests, folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def show(name: str, folder: Path) -> bool:
    """Print how the tests ended, and return whether they ended as they should."""
    result = folder / "outcome.json"
    outcome = json.loads(result.read_text()) if result.exists() else {"code": None, "test": "", "seconds": 0.0}
    expected_code = 0 if name == NO_DEFECT else 1  # pytest's, with tests that failed
    if outcome["code"] == expected_code:
        end = f"found by {outcome['test']}" if outcome["test"] else "all tests pass"
        print(f"{name:<36} {outcome['seconds']:5.1f} s  {end}", flush=True)
        return True
    if outcome["code"] == 0:
        other_test = outcome["other_test"]
        end = f"only {other_test} finds it: name it" if other_test else "no test of the suite finds it"
        print(f"{name:<36} {outcome['seconds']:5.1f} s  SURVIVES its tests, and {end}", flush=True)
        return False
    print(f"{name:<36} {outcome['seconds']:5.1f} s  FAILED: {outcome['test'] or 'its tests did not run'}", flush=True)
    lines = (folder / "output").read_text(errors="replace").splitlines()
    for line in lines[-LINES_SHOWN:]:
        print(f"    {line}", flush=True)
    return False


def run_all(mutants: list[Mutant], jobs: int) -> list[str]:
    """Return the names of the runs that did not end as they should; the first run has all tests and no defect."""
    all_tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    waiting = [(NO_DEFECT, None, all_tests)]
    waiting += [(mutant.name, mutant, mutant.tests) for mutant in mutants]
    running = {}
    failed = []
    with tempfile.TemporaryDirectory() as place:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, mutant, tests = waiting.pop(0)
                running[start_fork(mutant, tests, Path(place, name))] = name
            process, _ = os.wait()
            name = running.pop(process)
            if not show(name, Path(place, name)):
                failed.append(name)
    return failed


def main() -> int:
    mutants = read_mutants()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[mutant.name for mutant in mutants], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count(), 8), help="forks at a time")
    args = parser.parse_args()
    if args.only:
        mutants = [mutant for mutant in mutants if mutant.name == args.only]
    for mutant in mutants:
        try:
            mutant.changed_source()
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    os.environ.update(QUIET)
    os.chdir(ROOT)
    start = time.perf_counter()
    import_libraries()
    failed = run_all(mutants, args.jobs)
    seconds = time.perf_counter() - start
    found = [mutant for mutant in mutants if mutant.name not in failed]
    kinds = Counter(mutant.by for mutant in found)
    another_way = sum(kinds[kind] for kind in BY_ANOTHER_WAY)
    print(f"{len(found)} of {len(mutants)} found, {another_way} by a number computed another way, {seconds:.0f} s")
    print(", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
