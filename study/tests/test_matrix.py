"""`study/recipes/matrix.yaml`: from blocks to runs, in their order, and what is wrong in one line."""

import subprocess
from pathlib import Path

import pytest
import yaml
from trl import ModelConfig

from study import bases as bases_module
from study.matrix import OWN, TUNED, RunKey, read_matrix
from trl_prorl import ProRLConfig
from trl_prorl.errors import InputError
from trl_prorl.keys import KEYS
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.resets.treatments import TREATMENTS
from trl_prorl.train import TaskArguments


ROOT = Path(__file__).parent.parent.parent
TWO = """
evaluation: {prompts: 24, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [digits, letters]
    pairs: [[1, 7], [2, 8]]
    steps: 9
    arms:
      plain: {}
      A: {beta: 1.0, kl_estimator: null}
  stress:
    families: [digits]
    pairs: [[1, 7]]
    steps: 9
    keys: {learning_rate: 1.0}
    suffix: _lr10
    arms:
      A:
  again:
    families: [digits]
    pairs: [[2, 8]]
    steps: 9
    arms:
      A:
      B: {beta_old: 1.0}
"""


def test_the_runs_and_their_order(study):
    matrix = read_matrix(study(TWO, ("digits", "letters")))
    assert [tuple(run.key) for run in matrix.runs] == [
        *(("digits", "plain", 1, 7, 9), ("digits", "A", 1, 7, 9), ("letters", "plain", 1, 7, 9)),
        *(("letters", "A", 1, 7, 9), ("digits", "plain", 2, 8, 9), ("digits", "A", 2, 8, 9)),
        *(("letters", "plain", 2, 8, 9), ("letters", "A", 2, 8, 9)),
        ("digits", "A_lr10", 1, 7, 9),
        ("digits", "B", 2, 8, 9),  # `A` of this block is the run of the first
    ]
    by_key = {run.key: run.recipe for run in matrix.runs}
    recipe = by_key[RunKey("digits", "A_lr10", 1, 7, 9)]
    wanted = {"beta": 1.0, "learning_rate": 1.0, "max_steps": 9, "seed": 7, "lora_r": 32}
    assert {key: recipe[key] for key in wanted} == wanted
    assert recipe["model_name_or_path"] == "study/bases/reverse_digits-1"
    assert "kl_estimator" not in recipe
    assert "kl_estimator" in by_key[RunKey("digits", "plain", 1, 7, 9)]
    assert "output_dir" not in recipe


def test_an_arm_is_a_row(study):
    before = read_matrix(study(TWO, ("digits", "letters")))
    row = "      B_noclip: {beta_old: 1.0, loss_mode: unclipped}\n"
    after = read_matrix(study(TWO + row, ("digits", "letters")))
    (new,) = set(after.runs) - set(before.runs)
    assert new.key == RunKey("digits", "B_noclip", 2, 8, 9)
    assert new.recipe["loss_mode"] == "unclipped"
    assert {run.recipe_hash for run in before.runs} < {run.recipe_hash for run in after.runs}


def test_the_hash_of_a_recipe_is_of_the_arm_alone(study):
    hashes = {run.key: run.recipe_hash for run in read_matrix(study(TWO, ("digits", "letters"))).runs}
    one = hashes[RunKey("digits", "A", 1, 7, 9)]
    assert one == hashes[RunKey("digits", "A", 2, 8, 9)]
    assert one not in (hashes[RunKey("digits", "A_lr10", 1, 7, 9)], hashes[RunKey("digits", "plain", 1, 7, 9)])


def test_a_selection(study):
    matrix = read_matrix(study(TWO, ("digits", "letters")))
    keys = [run.key for run in matrix.selected(["core"], ["digits"], ["A"]).runs]
    assert keys == [RunKey("digits", "A", 1, 7, 9), RunKey("digits", "A", 2, 8, 9)]
    assert matrix.selected().runs == matrix.runs
    with pytest.raises(InputError, match=r"BLOCKS=cor: there is none \(did you mean 'core'\?\); there is core, str"):
        matrix.selected(["cor"])
    with pytest.raises(InputError, match="FAMILIES=words: there is none; there is digits, letters"):
        matrix.selected(families=["words"])


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("steps: 9", "steps: 0", "blocks.core.steps is 0; an integer from 1 is needed"),
        ("steps: 9", "stepps: 9", "blocks.core has no 'steps'"),
        ("    suffix", "    sufix", r"blocks.stress has no key 'sufix' \(did you mean 'suffix'\?\)"),
        ("[[1, 7], [2, 8]]", "[[1, 7, 2]]", r"blocks.core.pairs\[0\] is 'of length 3'; a list of 2 is needed"),
        ("plain: {}", "plain:", "core.arms: plain has no keys, and no block before defines it"),
        ("plain: {}", "plain: {seed: 3}", "core.arms.plain is a dict; a mapping .* without model_name_or_path"),
        ("plain: {}", "pl/ain: {}", r"core.arms\[0\] is 'pl/ain'; a name of letters"),
        ("suffix: _lr10", "split: train", "blocks.stress.split is 'train'; test or validation is needed"),
        ("      A:\n      B", "      A: {beta: 2.0}\n      B", r"again.arms.A=\{'beta': 2.0\} is .* in an earlier"),
        ("    suffix: _lr10\n", "", "digits, A, base seed 1, seed 7, 9 steps: two blocks give this run different"),
        ("suffix: _lr10", "evaluation: {prompts: 1}", "evaluation.prompts is 1; an integer from 2 is needed"),
        ("[digits, letters]", "[digits, words]", "words.yaml: there is no such file"),
        ("prompts: 24", "prompts: 1", "evaluation.prompts is 1; an integer from 2 is needed"),
        ("samples: 8", "samples: 4", "evaluation.samples is 4; an integer from 8 is needed"),
        ("drift_samples: 2", "drift_samples: 9", "evaluation.drift_samples=9 exceeds samples"),
        ("suffix: _lr10", "suffix: _lr10\n    suffix: _x", "the key 'suffix' is given twice"),
        ("suffix: _lr10", "checkpoints: 2", "blocks.stress.checkpoints=2 has to divide steps=9"),
        ("suffix: _lr10", "checkpoints: 0", "blocks.stress.checkpoints is 0; an integer from 1 is needed"),
        (
            "plain: {}",
            "plain: {trained_by: os}",
            "plain.trained_by is 'os'; one of study.fine_tuning, study.rep",
        ),
        (
            "suffix: _lr10",
            "passk: {prompts: 2, samples: 1, arms: [A]}",
            "blocks.stress.passk.samples is 1; an integer from 2 is needed",
        ),
        (
            "suffix: _lr10",
            "passk: {prompts: 2, samples: 4, arms: [none]}",
            r"blocks.stress.passk=\['none'\] has to be a list of arms",
        ),
        ("suffix: _lr10", "texts: {checkpoints: 2, arms: [A]}", "stress.texts.checkpoints=2 has to divide steps=9"),
        ("suffix: _lr10", "texts: {checkpoints: 3}", "blocks.stress.texts has no 'arms'"),
        (
            "suffix: _lr10",
            "texts: {checkpoints: 3, arms: [none]}",
            r"blocks.stress.texts=\['none'\] has to be a list of arms",
        ),
        ("suffix: _lr10", "suffix: _x\n    references: [plain]", r"references=\['plain'\] has to be a list of arms"),
    ],
)
def test_what_is_wrong_is_one_line(study, old, new, message):
    assert old in TWO
    with pytest.raises(InputError, match=message) as caught:
        read_matrix(study(TWO.replace(old, new, 1), ("digits", "letters")))
    assert "\n" not in str(caught.value)


def test_a_block_may_have_an_evaluation_of_its_own_and_be_no_default(study):
    own = "evaluation: {samples: 9}\n    others: [parity@2]\n    default: false"
    matrix = read_matrix(study(TWO.replace("suffix: _lr10", f"suffix: _lr10\n    {own}"), ("digits", "letters")))
    (run,) = (run for run in matrix.runs if run.block == "stress")
    common = {"prompts": 24, "samples": 8, "drift_samples": 2, "split": "test", "others": []}
    assert run.evaluation == {**common, "samples": 9, "others": ["parity@2"]}
    assert all(other.evaluation == common for other in matrix.runs if other is not run)
    assert [block.name for block in matrix.selected().blocks] == ["core", "again"]
    assert [block.name for block in matrix.selected(["stress"]).blocks] == ["stress"]


def test_a_block_may_ask_for_many_samples_of_some_arms(study):
    asked = "passk: {prompts: 12, samples: 32, arms: [A]}"
    text = TWO.replace("      A:\n  again", "      A:\n      plain:\n  again")
    text = text.replace("suffix: _lr10", f"suffix: _lr10\n    {asked}")
    runs = read_matrix(study(text, ("digits", "letters"))).runs
    found = {run.key.arm: run.evaluation["passk"] for run in runs if "passk" in run.evaluation}
    assert found == {"A_lr10": {"prompts": 12, "samples": 32}}
    assert "plain_lr10" in {run.key.arm for run in runs}


def test_a_block_may_keep_the_texts_of_every_end_and_of_some_checkpoints(study):
    text = TWO.replace("      A:\n  again", "      A:\n      plain:\n  again")
    text = text.replace("suffix: _lr10", "suffix: _lr10\n    texts: {checkpoints: 3, arms: [A]}")
    runs = read_matrix(study(text, ("digits", "letters"))).runs
    found = {run.key.arm: run.evaluation["texts"] for run in runs if "texts" in run.evaluation}
    assert found == {"A_lr10": {"checkpoints": 3}, "plain_lr10": {"checkpoints": 0}}


def test_what_the_study_alone_knows_is_no_key_of_the_product(study):
    text = TWO.replace("suffix: _lr10", "suffix: _lr10\n    checkpoints: 3")
    text = text.replace("A: {beta: 1.0, kl", "A: {trained_by: study.fine_tuning, beta: 1.0, kl")
    matrix = read_matrix(study(text, ("digits", "letters")))
    (run,) = (run for run in matrix.runs if run.block == "stress")
    assert run.evaluation["checkpoints"] == 3
    assert run.recipe["trained_by"] == "study.fine_tuning"
    assert run.product_recipe == {key: value for key, value in run.recipe.items() if key != "trained_by"}
    before = read_matrix(study(TWO, ("digits", "letters")))
    (then,) = (run for run in before.runs if run.block == "stress")
    assert then.recipe_hash != run.recipe_hash
    assert "checkpoints" not in then.evaluation


def test_the_study_s_blocks():
    matrix = read_matrix(ROOT)
    counts = {block.name: len({run.key for run in block.runs}) for block in matrix.blocks}
    sizes = {"tuning": 9 * 3 * 2, "tuning_stress": 9 * 2, "core": 8 * 3 * 5, "stress": 5 * 5, "long": 7 * 2 * 3}
    added = {"stress_rate": 3 * 2, "tuning_mild": 9 * 2, "mild": 5 * 5, "long5": 7 * 5, "events": 8 * 5, "side": 63}
    second = {"gamed_screen": 10 * 2, "gamed": 10 * 10, "gamed2": 5 * 5, "forget": 5 * 6, "modes": 8 * 5}
    second |= {"clamp_screen": 3 * 2, "clamp": 4 * 5, "clamp_restart": 5, "clamp_repeat": 2}
    second |= {"pretrained": 4 * 3} | dict.fromkeys(("reuse2", "reuse8", "reuse32"), 8 * 3)
    third = {"rivals": 5 * 5, "rivals2": 5 * 5, "dose": 2 * 4 * 5, "clamp2": 9 * 3, "forget2": 4 * 6}
    third |= {"smollm2b_screen": 3, "smollm2b": 4 * 3}
    fourth = {"target": 25, "target2": 25, "tuned_stops": 10, "tuned_rivals": 15, "tuned_rivals2": 15}
    fourth |= {"smollm2b_seeds": 8, "long_k": 12, "dose_long": 15, "dose_sorting": 40}
    assert counts == sizes | added | second | third | fourth
    # Runs of two blocks: plain of `tuning_mild`; three pairs of `long5`; plain, A and B of `side`; plain, control and
    # A of `events`.
    first = 72 + 120 + 25 + 6 + (9 - 1) * 2 + 25 + 42 + 7 * 2 + (21 - 3) * 3 + (8 - 3) * 5
    assert len(matrix.runs) == first + sum((second | third | fourth).values())
    core = matrix.blocks[2]
    assert core.arms == ["plain", "control", "A", "B", "C_hard", "C_soft0.1", "C_asym", "C_step"]
    assert {run.key.arm for run in core.runs if not run.open_keys} == {"plain"}
    assert {block.name for block in matrix.blocks} - {block.name for block in matrix.selected().blocks} == {
        *("clamp_restart", "clamp_repeat", "pretrained", "smollm2b_screen", "smollm2b", *fourth)
    }
    for tunes, bases in ((True, {0, 6}), (False, {1, 2, 3, 4, 5})):
        blocks = [block for block in matrix.blocks if block.tunes == tunes]
        assert {run.key.base_seed for block in blocks for run in block.runs} == bases


def test_the_frozen_commit_has_every_key_and_base_of_the_matrix():
    """What `make study` trains in a fresh clone is trained by the code of that commit."""
    commit = (ROOT / "study" / "tables" / "frozen_at").read_text().strip()

    def printed(*arguments):
        asked = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    if not printed("cat-file", "-t", commit):
        pytest.skip("the checkout has no such commit")
    declared = printed("show", f"{commit}:trl_prorl/keys.py")
    bases = []
    for folder in (bases_module.FOLDER, bases_module.OF_THE_PACKAGE):
        bases += printed("ls-tree", "--name-only", f"{commit}:{folder.as_posix()}").split()
    for run in read_matrix(ROOT).runs:
        assert [key for key in run.recipe if key in KEYS and f"    {key}: " not in declared] == [], run.key
        model = run.recipe["model_name_or_path"]
        assert model == "smollm2" or Path(model).name in bases


def test_every_arm_is_a_recipe_that_the_launcher_takes(tmp_path):
    seen = set()
    for run in read_matrix(ROOT).runs:
        if run.key.arm in seen or (run.recipe.get("optimizer_reset", "keep") not in TREATMENTS):
            continue
        seen.add(run.key.arm)
        path = tmp_path / "run.yaml"
        recipe = {key: 1.0 if value in (TUNED, OWN) else value for key, value in run.product_recipe.items()}
        path.write_text(yaml.safe_dump({**recipe, "output_dir": str(tmp_path / "run")}))
        parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
        _, config, _ = parser.parse_args_and_config(["--config", str(path)])
        others = {"A_elastic": "elastic", "C_keep_spike": "A", "optimizer_only": "optimizer-only"}
        if "trained_by" not in run.recipe:
            assert config.variant == others.get(run.key.arm, run.key.arm.split("_")[0])
    assert len(seen) >= 35
