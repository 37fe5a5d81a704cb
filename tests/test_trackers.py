"""What a tracker receives: TensorBoard's files, read by TensorBoard's own reader, beside the record."""

import re
from pathlib import Path

import pytest
from run_record import read_rows


ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def written(forks, tiny_model, tmp_path_factory):
    """The scalars of a short run by name and step, and its record by step."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path_factory.mktemp("tracked")
    options = "--max_steps 6 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 2 "
    options += (
        "--lora_r 4 --logging_steps 1 --report_to tensorboard --eval_strategy steps --eval_steps 3 --eval_rows 4"
    )
    options += f" --num_generations_eval 8 --beta_base 0.1 --output_dir {out} --model_name_or_path {tiny_model}"
    status, text = forks.run(ROOT / "recipes" / "grpo_variantA.py", *options.split())
    assert status == 0, text[-3000:]
    (file,) = out.rglob("events.out.tfevents.*")
    events = reader.EventAccumulator(str(file.parent))
    events.Reload()
    scalars = {tag: {point.step: point.value for point in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    return scalars, {row["step"]: row for row in read_rows(out)}


@pytest.mark.parametrize("name", ["kl_ref", "kl_old", "kl_base", "kl_penalty", "beta", "ref_forward_calls"])
def test_the_tracker_has_the_values_of_the_record(written, name):
    scalars, rows = written
    assert scalars[f"train/prorl/{name}"] == pytest.approx({k: row[name] for k, row in rows.items() if name in row})


def test_what_trl_logs_is_there_with_resets_and_evaluations(written):
    scalars, rows = written
    generated = [step for step, row in rows.items() if row["tokens_generated"]]
    assert scalars["train/reward"] == pytest.approx({step: rows[step]["reward"] for step in generated})
    assert scalars["train/prorl/resets"] == {3: 1.0, 5: 1.0}  # after the steps 2 and 4
    assert set(scalars["eval/pass@1"]) == {3, 6}


def test_every_name_of_the_page_is_written(written):
    page = (ROOT / "docs" / "trackers.md").read_text()
    named = {name.replace("NAME", "reverse_digits") for name in re.findall(r"`((?:train|eval)/[\w/@]+)`", page)}
    assert len(named) > 20 and named - set(written[0]) == set()


def test_a_shipped_recipe_leaves_the_tracker_to_the_user():
    """The study's recipes do not come with the package, and a change of theirs would be another study."""
    asking = [recipe for recipe in ROOT.glob("recipes/**/*.yaml") if "report_to" in recipe.read_text()]
    assert {recipe.parent.name for recipe in asking} == {"study"}
