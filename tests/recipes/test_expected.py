"""`recipes/tiny/expected.py`: from runs to a table of raw results, and from that to the text of the pages."""

import csv
import importlib.util
import json
import math
from pathlib import Path

import pytest
from run_record import write_run

from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.embedded.shipped import weights_sha256


ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("expected", ROOT / "recipes" / "tiny" / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


@pytest.fixture
def run(tmp_path):
    """A function that writes a run as the demo leaves it, with some keys changed."""

    def write(recipe="variantA", seed=1, pass1=0.5, sha256=None, steps=240, **keys):
        config = read_recipe(expected.HERE / f"{recipe}.yaml")
        config |= {"save_strategy": "steps", **keys}
        del config["gradient_accumulation_steps"]  # a key at TRL's default is not written
        base = {"name": "embedded:reverse_digits:0", "sha256": sha256 or weights_sha256("embedded")}
        env = {"seed": seed, "base_model": base, "git_commit": "abc"}
        passk = {
            "prompts": 256,
            "n": 16,
            "step": steps,
            "base": {"pass@1": 0.25},
            "trained": {"pass@1": pass1, "pass@8": 0.9},
        }
        return write_run(tmp_path / f"{recipe}_seed{seed}", config, [], env=env, passk=passk)

    return write


@pytest.mark.parametrize("changed", [{"ref_reset_every": 30}, {"max_steps": 60}, {"sha256": "0" * 64}, {"steps": 239}])
def test_a_run_that_does_not_belong_is_refused(run, changed):
    with pytest.raises(ValueError):
        expected.row_of(run(**changed))


def test_from_runs_to_a_page(run, tmp_path, monkeypatch):
    scores = {"plain": 0.7, "control": 0.4, "variantA": 0.6, "variantB": 0.66, "variantC": 0.6}
    runs = [run(recipe, seed, score + 0.01 * seed) for recipe, score in scores.items() for seed in (1, 2, 3)]
    monkeypatch.setattr(expected, "TABLE", tmp_path / "expected.csv")
    expected.write_rows(runs)
    with open(tmp_path / "expected.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (len(rows), rows[0]["recipe"], rows[0]["pass@1"]) == (15, "plain", "0.710000")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{expected.BEGIN}old\n{expected.END}after\n")
    text = expected.with_table(page, expected.read_rows())
    # mean 0.62, s = 0.01, t(0.975, 2) = 4.302653
    half = 4.302653 * 0.01 * math.sqrt(4 / 3)
    assert f"0.620 | **[{0.62 - half:.3f}, " in text
    assert "A − control +0.200 [+0.200, +0.200]" in text
    assert "B − A +0.060" in text


def test_intervals_by_hand():
    # mean 2, s = 1, t(0.975, 2) = 4.302653, the error of one more value
    half = 4.302653 * math.sqrt(4 / 3)
    assert expected.prediction_interval([1, 2, 3]) == pytest.approx((2, 2 - half, 2 + half))
    # t(0.75, 1) = 1, and the error of one more value is √3.
    assert expected.prediction_interval([0, 2], 0.5) == pytest.approx((1, 1 - math.sqrt(3), 1 + math.sqrt(3)))
    # Means 5, 5; variances of the means 1/3, covariance 1/6; t(0.975, 2)^2 = 18.5128.
    # 18.8291 r^2 - 2 * 21.9145 r + 18.8291 <= 0: r = 1.16387 -+ sqrt(1.16387^2 - 1).
    assert expected.fieller_ratio([4, 5, 6], [5, 4, 6]) == pytest.approx((1.0, 0.56839, 1.75935), rel=1e-4)
    assert expected.fieller_ratio([0, 0], [2, 2]) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="not differ significantly from 0"):
        expected.fieller_ratio([1, 1], [0, 2])  # 1 - 161.45 * 1 < 0


def test_a_night_s_runs_are_held_against_the_table(run, tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "TABLE", tmp_path / "expected.csv")
    expected.write_rows([run(seed=seed, pass1=0.6 + 0.001 * seed) for seed in (1, 2, 3)])
    # mean 0.602, s = 0.001, t(0.9995, 2) = 31.599055: 0.602 ± 0.036487
    inside = run(seed=7, pass1=0.6384)
    beyond = run(seed=8, pass1=0.6386)
    assert expected.outside([inside]) == []
    (line,) = expected.outside([inside, beyond])
    assert str(beyond) in line and "[0.566, 0.638]" in line
    other = json.loads((inside / "passk.json").read_text()) | {"n": 8}
    (beyond / "passk.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="other prompts or samples"):
        expected.outside([beyond])
    for checked, code in ((inside, 0), (run(seed=8, pass1=0.6386), line)):
        monkeypatch.setattr("sys.argv", ["expected.py", "--check", str(checked)])
        with pytest.raises(SystemExit) as ended:
            expected.main()
        assert ended.value.code == code


def test_the_page_says_what_the_table_says():
    assert expected.PAGE.read_text() == expected.with_table(expected.PAGE, expected.read_rows()), f"run {spec.origin}"
