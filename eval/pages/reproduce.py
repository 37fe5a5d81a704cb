"""Commands that reproduce runs, evaluations and the report."""

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.run.provenance import describe_evaluation, evaluation_options, plugin_options
from trl_prorl.text import code_block, shell_quote, visible


def passk_command(runs: list[RecordedRun]) -> str:
    """Return the command that evaluates these runs."""
    plugins = "".join(dict.fromkeys(plugin_options(run.env) for run in runs))
    return f"trl-prorl passk{plugins} " + " ".join(f"--run {shell_quote(str(run.path))}" for run in runs)


def evaluation_commands(runs: list[RecordedRun]) -> str:
    """Return the commands that evaluated the runs, one per setting; with defaults for runs not evaluated yet."""
    by_setting = {}
    for run in runs:
        if run.can_be_evaluated:
            options = evaluation_options(run.config, run.passk) if run.passk else ""
            by_setting.setdefault(options, []).append(run)
    return "\n".join(passk_command(group) + options for options, group in by_setting.items())


def section(frame: Frame, command: str) -> Section:
    """Return the section, with the command that writes the report."""
    how = (
        "Train a run again, whatever its variant, with `trl-prorl train <run folder>/config.yaml --output_dir <new "
        "folder> --resume_from_checkpoint false`. Its versions, hardware and seed are in `env.json`. Then:"
    )
    blocks = [how]
    for run in frame.runs:
        if not run.can_be_evaluated:
            how_own = describe_evaluation(run.config, run.env, run.path)
            blocks.append(visible(f"Evaluate `{run.name}` with {how_own}."))
    return Section("How to reproduce", [*blocks, code_block(f"{evaluation_commands(frame.runs)}\n{command}".strip())])
