"""Commands that reproduce runs, evaluations and the report."""

from trl_prorl.eval.pages.document import Code, Section, Text
from trl_prorl.eval.run_folder.run import DEFAULT_MAX_COMPLETION_LENGTH, RecordedRun
from trl_prorl.provenance import describe_evaluation, plugin_options
from trl_prorl.text import shell_quote


def passk_command(runs: list[RecordedRun]) -> str:
    """Return the command that evaluates these runs."""
    plugins = "".join(dict.fromkeys(plugin_options(run.env) for run in runs))
    return f"trl-prorl passk{plugins} " + " ".join(f"--run {shell_quote(str(run.path))}" for run in runs)


def evaluation_commands(runs: list[RecordedRun]) -> str:
    """Return the commands that evaluated the runs, one per setting; with defaults for runs not evaluated yet."""
    by_setting = {}
    for run in runs:
        if not run.can_be_evaluated:
            continue
        options = ""
        if run.passk:
            options = _passk_options(run)
        by_setting.setdefault(options, []).append(run)
    return "\n".join(passk_command(group) + options for options, group in by_setting.items())


def _passk_options(run: RecordedRun) -> str:
    """Return the options with which a run was evaluated."""
    passk = run.passk
    ks = " ".join(map(str, passk["k"]))
    temperature = passk["temperature"]
    sampling = f"--temperature {temperature:g}" if temperature else "--greedy"
    tokens = passk["max_new_tokens"]
    own = run.config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH
    if tokens != own:
        sampling += f" --max-new-tokens {tokens}"
    split = f" --split {shell_quote(passk['split'])}" if run.config.get("task") else ""  # own rows have no splits
    return (
        f"{split} --prompts {passk['prompts']} --n {passk['n']} --k {ks} {sampling} "
        f"--seed {shell_quote(str(passk['seed']))}"
    )


def sections(runs: list[RecordedRun], command: str) -> list[Section]:
    """
    Args:
        runs (`list[RecordedRun]`): The runs.
        command (`str`): The command that writes the report.
    """
    how = Text(
        "Train a run again, whatever its variant, with `trl-prorl train <run folder>/config.yaml --output_dir <new "
        "folder>`. Its versions, hardware and seed are in `env.json`. Then:"
    )
    own = [run for run in runs if not run.can_be_evaluated]
    how_own = [
        Text(f"Evaluate `{run.name}` with {describe_evaluation(run.config, run.env, run.path)}.") for run in own
    ]
    return [Section("How to reproduce", [how, *how_own, Code(f"{evaluation_commands(runs)}\n{command}".strip())])]
