"""The sections of a report on runs: which tables, pictures and sentences, in which order."""

from pathlib import Path

from eval import analysis_views, closeups, drift_view, passk_views, plots
from eval.document import Bullets, Code, Picture, Report, Section, Text, said_once
from eval.matrix import result_matrix
from eval.panels import plot_sheet
from eval.runs import Run
from eval.sampling import DEFAULT_MAX_COMPLETION_LENGTH
from eval.statements import caveats, comparison_statements, passk_command
from eval.success import comparisons, success_statements, success_table
from eval.tables import (
    DIFFERENT_OBJECTIVE,
    both_a_and_b,
    cost_table,
    learning_table,
    objective_notes,
    repetitions,
    seed_count,
    seeds_table,
)
from trl_prorl.variants import VARIANT_DESCRIPTIONS


VARIANT_SHORT = {
    "plain": "no KL",
    "control": "a reference that never moves",
    "A": "a reference that is reset",
    "B": "no reference, KL to the sampling policy",
    "C": "as A, optimizer reset too",
}
DESCRIBED_KEYS = (
    "beta",
    "beta_old",
    "beta_base",
    "kl_estimator",
    "ref_compute",
    "ref_reset_every",
    "ref_reset_mix",
    "optimizer_reset",
    "optimizer_reset_alpha",
)


def arm_list(runs: list[Run]) -> list[str]:
    """What each arm is: its variant in words, its seed and the settings that set it apart, then what all arms share."""

    def described(run, keys):
        return ", ".join(f"`{key}: {run.config[key]}`" for key in keys if run.config.get(key))

    common = [key for key in DESCRIBED_KEYS if len({repr(run.config.get(key)) for run in runs}) == 1]
    lines = []
    for run in runs:
        seed = "seed not recorded" if run.seed is None else f"seed {run.seed}"
        description = VARIANT_DESCRIPTIONS.get(run.variant, "a variant this report does not know")
        settings = described(run, [key for key in DESCRIBED_KEYS if key not in common])
        lines.append(f"**{run.name}** ({run.variant}, {seed}): {description}. {settings}".rstrip())
    if described(runs[0], common):
        lines.append(f"All arms: {described(runs[0], common)}")
    return lines


def _shared(runs: list[Run], key: str) -> str:
    values = dict.fromkeys(str(run.config.get(key, "default")) for run in runs)
    return ", ".join(f"`{value}`" for value in values)


def evaluation_commands(runs: list[Run]) -> str:
    """The commands that evaluated the runs, one per setting; with the defaults for runs not evaluated yet."""
    by_setting = {}
    for run in runs:
        if not run.can_be_evaluated:
            continue
        options = ""
        if run.passk:
            split, prompts, n, ks = (run.passk[key] for key in ("split", "prompts", "n", "k"))
            temperature, seed = run.passk["temperature"], run.passk["seed"]
            sampling = f"--temperature {temperature:g}" if temperature else "--greedy"
            tokens = run.passk.get("max_new_tokens")
            own = run.config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH
            sampling += f" --max-new-tokens {tokens}" if tokens and tokens != own else ""
            options = (
                f" --split {split} --prompts {prompts} --n {n} --k {' '.join(map(str, ks))} {sampling} --seed {seed}"
            )
        by_setting.setdefault(options, []).append(run)
    return "\n".join(passk_command(group) + options for options, group in by_setting.items())


def _caption(runs: list[Run], text: str) -> str:
    return f"{text} {DIFFERENT_OBJECTIVE}" if both_a_and_b(runs) else text


def _with_bands(runs: list[Run], text: str) -> str:
    """What a strong line and a band mean, where there are seeds to put together."""
    return f"{text} {plots.BAND_NOTE}" if any(seed_count(group) > 1 for group in repetitions(runs)) else text


def lead(runs: list[Run]) -> list[Text]:
    """What was compared, in two sentences."""
    variants = {run.variant: VARIANT_SHORT.get(run.variant) for run in runs}
    arms = ", ".join(f"{variant} ({short})" if short else variant for variant, short in variants.items())
    seeds = sorted({str(run.seed) for run in runs if run.seed is not None})
    return [
        Text(
            f"Model {_shared(runs, 'model_name_or_path')}, task {_shared(runs, 'task')}, level "
            f"{_shared(runs, 'task_level')}. Base means the policy as a run began."
        ),
        Text(
            f"Compared: {arms}{f'; training seed{chr(115) * (len(seeds) > 1)} ' + ', '.join(seeds) if seeds else ''}."
        ),
    ]


def _success_section(runs: list[Run]) -> list[Section]:
    found = comparisons(runs)
    if not found:
        return []
    rule = Text("The rule: B keeps 80 to 90 % of A's held-out score at a lower step cost.")
    table = success_table(found)
    return [Section(table.title, [rule, Bullets(success_statements(found)), table])]


def _curves_section(runs: list[Run]) -> Section:
    caption = _with_bands(
        runs,
        f"Smoothed over {plots.SMOOTHING_STEPS} steps (mean; KL: median of the steps where it is positive), as recorded "
        "behind it in faint. Vertical lines are resets, in the arm's colour.",
    )
    alt = "Reward, KL, entropy and throughput over optimizer steps"
    pictures = [Picture("summary.png", alt, _caption(runs, caption), plots.summary_panels(runs))]
    if panels := plots.validation_panels(runs):
        caption = _with_bands(runs, "Evaluations during training, as `evaluations.jsonl` has them.")
        pictures.append(Picture("validation.png", panels[0].alt, _caption(runs, caption), panels))
    return Section("Curves", pictures)


def _passk_sections(runs: list[Run]) -> list[Section]:
    sections = []
    table = passk_views.checkpoint_table(runs)
    if table:
        text = _with_bands(
            runs, "Base at step 0. Bands of a single run: 95 % over prompts. Vertical lines are resets."
        )
        picture = Picture(
            "checkpoints.png",
            "Held-out pass@k over checkpoints",
            _caption(runs, text),
            passk_views.checkpoint_panels(runs),
        )
        sections.append(Section(table.title, [picture, table]))
    saturation = analysis_views.saturation_blocks(runs)
    if saturation:
        said = Text("Fitted: 1 - (1 - p0) e^(-alpha t), what is unsolved shrinking by the same share each step.")
        sections.append(Section("One constant rate?", [said, *saturation]))
    panels = passk_views.k_panels(runs)
    if panels:
        text = (
            "Dotted: base; strong: trained. From the counts of correct samples, k on a base-2 axis. Bands: 95 % over prompts "
            "for a single run, lowest to highest seed where there are several."
        )
        picture = Picture("passk.png", "Held-out pass@k against k", _caption(runs, text), panels, 3)
        blocks = [picture]
        decoding = passk_views.decoding_table(runs)
        sections.append(Section("pass@k against k", blocks))
        if decoding:
            sections.append(Section(decoding.title, [decoding]))
    solved, paired = analysis_views.boundary_table_of(runs), analysis_views.pairs_blocks(runs)
    if solved:
        sections.append(Section(solved.title, [solved]))
    if paired:
        sections.append(Section("Arms of the same seed, paired by prompt", paired))
    for view in (passk_views.tasks_table, passk_views.forgetting_table):
        table = view(runs)
        if table:
            sections.append(Section(table.title, [table]))
    return sections


def _drift_section(runs: list[Run]) -> list[Section]:
    table = drift_view.drift_table(runs)
    if table is None:
        return []
    text = _with_bands(runs, "Over checkpoints. Band of a single run: its 95 % interval. Vertical lines are resets.")
    picture = Picture(
        "drift.png", "Distance from base over optimizer steps", _caption(runs, text), drift_view.drift_panels(runs)
    )
    return [Section(table.title, [picture, table])]


def _closeup_section(runs: list[Run]) -> list[Section]:
    if not closeups.arms_with_resets(runs):
        return []
    table = closeups.closeup_table(runs)
    text = (
        "Every reset faint, their median strong, all seeds of an arm together. The dotted line is the reset: 0 is the last "
        "step before it, 1 the first after. The scale of a metric is the same for all arms."
    )
    picture = Picture(
        "resets.png",
        "Reward, KL and gradient norm around the resets",
        _caption(runs, text),
        closeups.closeup_panels(runs),
        closeups.closeup_columns(runs),
    )
    return [Section(table.title, [picture, table])]


def _cost_section(runs: list[Run]) -> Section:
    table = cost_table(runs)
    picture = Picture(
        "ref_cost.png",
        "Reference forward calls, time of a step by stage, reference share of time",
        _caption(runs, "Configurations with several seeds: means over seeds; in brackets the lowest and the highest."),
        plots.ref_cost_panels(runs),
        3,
    )
    return Section(table.title, [table, picture])


def build_report(runs: list[Run], command: str) -> Report:
    """
    The report on runs, for [`eval.document.to_markdown`] and [`eval.html.to_html`].

    Args:
        runs (`list[Run]`): The runs, sorted.
        command (`str`): The command that makes this report again.
    """
    matrix = result_matrix(runs)
    tables = [table for table in (learning_table(runs), seeds_table(runs)) if table]
    sections = [
        Section(matrix.title, [*map(Text, objective_notes(runs)), matrix]),
        *_success_section(runs),
        Section("What the numbers say", [Bullets(comparison_statements(runs) or ["Nothing to compare yet."])]),
        _curves_section(runs),
        *(Section(table.title, [table]) for table in tables),
        *_passk_sections(runs),
        *_drift_section(runs),
        *_closeup_section(runs),
        _cost_section(runs),
        Section("Caveats", [Bullets(caveats(runs))]),
        Section("What each arm is", [Bullets(arm_list(runs))]),
        Section(
            "How to reproduce",
            [
                Text(
                    "`python recipes/grpo_variantA.py --config <run folder>/config.yaml --output_dir <new folder>` trains a run "
                    "from a recipe again, whatever its variant: its `config.yaml` decides. `env.json` holds versions, hardware "
                    "and seed. Then:"
                ),
                Code(f"{evaluation_commands(runs)}\n{command}".strip()),
            ],
        ),
    ]
    title = f"Prolonged GRPO: {len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    # Each table and picture says it, for it may stand alone; the report says it above the first of them.
    return said_once(Report(title, lead(runs), sections), DIFFERENT_OBJECTIVE)


def draw_pictures(report: Report, runs: list[Run], out: Path) -> list[str]:
    """Write the files that the markdown shows; returns their names."""
    own = {"summary.png": plots.plot_summary, "ref_cost.png": plots.plot_ref_cost}
    for picture in report.pictures():
        path = out / picture.file
        if picture.file in own:
            own[picture.file](runs, path)
        else:
            plot_sheet(picture.panels, path, picture.columns)
    return [picture.file for picture in report.pictures()]
