import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from PIL import Image

from eval import report
from eval.pages import cost, course, curves
from eval.pages.document import Picture
from eval.pages.objective import FOOTNOTE
from eval.pages.sheets import Sheet
from eval.run_folder.reading import load_run


@pytest.fixture
def runs(make_run, make_rows):
    events = [{"event": "reset", "step_applied": 10}]
    reference = {"kl_ref": lambda step: 0.0 if step in (1, 11) else 0.01, "time_ref": 0.2, "ref_forward_calls": 4}
    common = {"reward": lambda step: step / 20, "entropy": 0.5, "time_step": 1.0, "time_update": 0.4}
    return [
        load_run(make_run("plain", "plain", make_rows(20, **common))),
        load_run(make_run("A", "A", make_rows(20, **common, **reference), events=events)),
        load_run(make_run("B", "B", make_rows(20, **common, kl_ref=0.3, kl_old=1e-6, ref_forward_calls=0))),
        load_run(make_run("C", "C", make_rows(20, **common, **reference), events=events)),
    ]


def write(page, runs, path):
    """The picture of a section, as the file beside the markdown."""
    (picture, *_) = [block for block in page.sections(runs)[0].blocks if isinstance(block, Picture)]
    replace(picture, file=path.name).write(path.parent)


@pytest.mark.parametrize("page", [course, cost])
def test_pictures_open(page, runs, make_run, make_rows, tmp_path):
    bare = load_run(make_run("bare", "own", make_rows(1), events=None))
    for name, group in (("all", runs), ("one", runs[:1]), ("bare", [bare])):
        path = tmp_path / f"{name}.png"
        write(page, group, path)
        with Image.open(path) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert picture.width == 1600
            assert 300 <= picture.height <= 1200


def test_b_shows_kl_to_the_sampling_policy(runs, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.touch()))
    write(course, runs, tmp_path / "unused.png")
    kl = figures[0].axes[1]
    assert kl.get_legend_handles_labels()[1] == ["A: kl_ref", "B: kl_old", "C: kl_ref"]
    assert kl.get_yscale() == "symlog"
    assert figures[0].get_supxlabel() == FOOTNOTE


def test_only_what_was_measured_is_drawn(runs, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.touch()))
    write(cost, runs, tmp_path / "unused.png")
    calls, stages, share = figures[0].axes
    assert calls.get_legend_handles_labels()[1] == ["A: 80", "B: 0", "C: 80"]
    assert [text.get_text().strip() for text in share.texts] == ["– not measured", "20.0 %", "0.0 %", "20.0 %"]
    drawn = {(round(bar.get_y() + 0.4), round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in stages.patches}
    assert {(0, 0.0, 0.4), (1, 0.0, 0.2), (1, 0.2, 0.4)} <= drawn
    assert figures[0].get_supxlabel()  # A and B are both there


def test_one_colour_per_variant_and_dashes_within(runs):
    styles = curves.line_styles([*runs, runs[1]])
    assert len({style["color"] for style in styles}) == 4
    assert styles[4]["color"] == styles[1]["color"]
    assert styles[4]["linestyle"] != styles[1]["linestyle"]


@pytest.mark.parametrize("variants", [["A"], ["plain", "control", "A", "B", "C"], ["elastic", "optimizer-only"]])
def test_forty_lines_are_told_apart(make_run, make_rows, variants, tmp_path):
    """By colour, dashes and marker; the configurations differ in a number each."""
    folders = [
        make_run(f"r{i:02}", variants[i % len(variants)], make_rows(12, reward=i / 40), config={"beta": i / 100})
        for i in range(40)
    ]
    runs = [load_run(folder) for folder in folders]
    looks = [tuple(sorted(curve.style.items())) for curve in curves.curves(runs)]
    assert len(set(looks)) == len(looks) == 40
    axes = Figure().subplots()
    course.sheet_panels(Sheet("", curves.curves(runs)))[0].draw(axes)
    strong = [line for line in axes.lines if line.get_linewidth() > 1]
    drawn = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in strong}
    assert len(drawn) == len(strong) == 40
    for page in (course, cost):
        write(page, runs, tmp_path / "picture.png")


def test_one_wild_kl_does_not_hide_the_others(make_run, make_rows, tmp_path, monkeypatch):
    # Zero in every first pass, one outlier: the strong line stays at the usual value.
    run = load_run(make_run("A", "A", make_rows(40, kl_ref=lambda step: 5e3 if step == 20 else 0.01 * (step % 2))))
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.touch()))
    write(course, [run], tmp_path / "unused.png")
    strong = max(figures[0].axes[1].lines, key=lambda line: line.get_linewidth() * (len(line.get_xdata()) > 2))
    assert list(strong.get_ydata()) == pytest.approx([0.01] * 21)


def test_seeds_become_a_mean_and_a_band(make_run, make_rows, monkeypatch):
    # 20 steps at 0.2 and 12 at 0.6: the mean is drawn where both ran, from the lowest to the highest.
    runs = [
        load_run(make_run(f"A{seed}", "A", make_rows(steps, reward=value), env={"seed": seed}))
        for seed, steps, value in ((0, 20, 0.2), (1, 12, 0.6))
    ]
    alone = load_run(make_run("B", "B", make_rows(20, reward=0.5)))
    first, second = curves.curves([*runs, alone])
    assert (first.label, second.label) == ("A, 2 seeds", "B")
    axes = Figure().subplots()
    course.summary_panels([*runs, alone])[0].draw(axes)
    mean = next(line for line in axes.lines if line.get_label() == "A, 2 seeds")
    assert list(mean.get_xdata()) == list(range(1, 13))
    assert list(mean.get_ydata()) == pytest.approx([0.4] * 12)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((0.2, 0.6))
    assert len(axes.collections) == 1  # the single run has no band


def test_resets_of_all_seeds_are_marked(make_run, make_rows):
    runs = [
        load_run(
            make_run(
                f"A{seed}",
                "A",
                make_rows(20, reward=0.5),
                env={"seed": seed},
                events=[{"event": "reset", "step_applied": step} for step in steps],
            )
        )
        for seed, steps in ((0, [5, 10]), (1, [5, 15]))
    ]
    axes = Figure().subplots()
    course.summary_panels(runs)[0].draw(axes)
    assert sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2) == [5, 10, 15]


def test_evaluations_during_training_are_drawn_with_the_resets(make_run, make_rows):
    folder = make_run("A", "A", make_rows(20), events=[{"event": "reset", "step_applied": 10}])
    assert course.validation_panels([load_run(folder)]) == []
    rows = [{"step": step, "eval_reward": step / 100} for step in (0, 8, 16)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (panel,) = course.validation_panels([load_run(folder)])
    axes = Figure().subplots()
    panel.draw(axes)
    curve = next(line for line in axes.lines if line.get_label() == "A")
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 8, 16], [0.0, 0.08, 0.16])
    assert any(set(line.get_xdata()) == {10} for line in axes.lines)


def test_gold_is_drawn_beside_the_reward(make_run, make_rows):
    """The share of correct completions in the same panel, in dots of the arm's colour; the guard where it fired."""
    event = {"event": "guard_gap", "step_applied": 15, "reason": "the reward rose while gold fell"}
    rows = make_rows(20, reward=0.9, gold=lambda step: 0.5 - step / 100)
    gamed = load_run(make_run("plain", "plain", rows, events=[event]))
    other = load_run(make_run("A", "A", make_rows(20, reward=0.8)))
    axes = Figure().subplots()
    course.summary_panels([gamed, other])[0].draw(axes)
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_title() == "Training reward, and gold (dotted)"
    assert list(lines["plain: gold"].get_ydata())[-1] == pytest.approx(0.5 - 15.5 / 100)  # mean of steps 11 to 20
    assert lines["plain: gold"].get_linestyle() == ":" and lines["plain"].get_ydata()[-1] == 0.9
    assert lines["plain: gold"].get_color() == lines["plain"].get_color() and "A: gold" not in lines
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "X"] == [[15], []]
    assert "the reward is gamed" in lines
    course.summary_panels([other])[0].draw(axes := Figure().subplots())
    assert axes.get_title() == "Training reward"


def test_the_page_shows_them(make_run, make_rows, tmp_path):
    folder = make_run("A", "A", make_rows(20))
    (folder / "evaluations.jsonl").write_text('{"step": 5, "eval_reward": 0.5}\n')
    assert report.main(["--runs", str(folder)]) == 0
    assert "](validation.png)" in (folder.parent / "report.md").read_text()
    assert (folder.parent / "validation.png").exists()
