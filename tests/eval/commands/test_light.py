"""Help, and refusals that need no model, come before the libraries that take seconds to import."""

import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.commands import COMMANDS


ROOT = Path(__file__).parents[3]
HEAVY = "torch transformers trl peft datasets evaluate pandas scipy matplotlib"
RUN = """
import sys
from trl_prorl.commands import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("HEAVY", *sorted(set({heavy!r}.split()) & set(sys.modules)))
sys.exit(code)
"""


def run(*arguments):
    """Exit code, output without the last line, errors, and what of `HEAVY` was imported."""
    code = RUN.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    output, _, heavy = done.stdout.rpartition("HEAVY")
    return done.returncode, output, done.stderr, heavy.split()


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command):
    code, output, errors, heavy = run(command, "--help")
    assert code == 0 and output.startswith(f"usage: trl-prorl {command}") and not errors, errors[-2000:]
    assert heavy == []


RECIPE = "tiny/variantA"
REFUSED = {
    "passk --run nowhere": "run folder 'nowhere' does not exist",
    "passk --run nowhere/*": "--runs 'nowhere/*' matches nothing",
    "passk --run tests": "'tests/config.yaml' is missing",
    "passk --nope": "arguments are required: --run",
    "passk --run RUN --n 300": "--n 300: at least 1 sample",
    "passk --run RUN --others nope": "--others nope: name='nope' is not a task",
    "drift --run nowhere": "run folder 'nowhere' does not exist",
    "drift --run RUN --prompts 1": "--prompts 1 must be at least 2",
    "report --runs nowhere": "run folder 'nowhere' does not exist",
    "compare --runs nowhere nowhere": "run folder 'nowhere' does not exist",
    "boundary --run nowhere": "run folder 'nowhere' does not exist",
    "trajectory --run nowhere": "run folder 'nowhere' does not exist",
    "push --run nowhere": "run folder 'nowhere' does not exist",
    "preflight": "nothing says what to look at",
    "tasks show nope": "name='nope' is not a task",
    "step-cost --nope": "unrecognized arguments: --nope",
    "reset-cost --nope": "unrecognized arguments: --nope",
    "gpu-check --parts nope": "invalid choice: 'nope'",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusal(arguments, make_run, make_rows):
    words = [str(make_run("x", "A", make_rows(1))) if word == "RUN" else word for word in arguments.split()]
    code, _, errors, heavy = run(*words)
    assert code == 2 and REFUSED[arguments] in " ".join(errors.split()) and "Traceback" not in errors, errors[-2000:]
    assert heavy == []


# A recipe is checked once, by the parser, which knows TRL's keys.
OF_A_RECIPE = {
    f"preflight {RECIPE} --nope 1": "unknown option '--nope'",
    f"preflight {RECIPE} --task nope": "name='nope' is not a task",
    f"train {RECIPE} --nope 1": "unknown option '--nope'",
    f"train {RECIPE} --task nope": "name='nope' is not a task",
    f"train {RECIPE} --task=sums:0.5,nope:0.5": "takes no level",
}


@pytest.mark.parametrize("arguments", OF_A_RECIPE)
def test_refusal_of_a_recipe(arguments):
    code, output, errors, _ = run(*arguments.split())
    assert code == 2 and OF_A_RECIPE[arguments] in errors and errors.count("\n") == 1 and not output, errors[-2000:]


@pytest.mark.parametrize("module", sorted({module for module, _ in COMMANDS.values() if module.startswith("eval.")}))
def test_help_of_a_module(module):
    """`python -m`, whose imports are listed on stderr."""
    command = [sys.executable, "-X", "importtime", "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and f"{module} " in done.stdout.splitlines()[0], done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & set(HEAVY.split())


@pytest.mark.parametrize("name", ["nope", "rgx:chain_sum", ("a", "b")])
def test_what_is_asked_at_once_is_what_the_registry_says(name):
    from tasks.registry import check_name, get_task

    with pytest.raises(ValueError) as later:
        get_task(name)
    with pytest.raises(ValueError) as at_once:
        check_name(name)
    assert str(at_once.value) == str(later.value)
