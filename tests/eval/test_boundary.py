import json
from math import comb

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from eval import boundary as module
from eval.boundary import boundary, boundary_statements, boundary_table, changed_prompts, draw_sizes


def separation(n):
    """Two-sided Fisher p-value of none against all of n: the two extreme tables of C(2n, n)."""
    return 2 / comb(2 * n, n)


def test_who_was_solved_and_who_lost(passk_result):
    result = boundary(passk_result(base=[0, 3, 0, 5, 0], trained=[8, 0, 0, 6, 1]))
    assert [(c.prompt, c.base, c.trained) for c in result.newly_solved] == [(0, 0, 8), (4, 0, 1)]
    assert [(c.prompt, c.base, c.trained) for c in result.lost] == [(1, 3, 0)]
    assert (result.both, result.neither) == (1, 1)
    assert result.solved_at_all == (2, 1, 1.0)  # of three coins, 2 to 1 is as even as it gets
    # 0 of 8 against 8 of 8: 2 / C(16, 8) = 2 / 12870, times 5 prompts; the others have p = 1 or near.
    first, second = result.newly_solved
    assert first.p_value == pytest.approx(5 * separation(8))
    assert first.separated
    assert not second.separated
    # 3 of 8 against 0 of 8, both tails of the hypergeometric: 2 C(8,3) / C(16,3) = 1/5, times 4 prompts left.
    assert result.lost[0].p_value == pytest.approx(4 / 5)
    assert not result.lost[0].separated


def test_separated_at_five_per_cent_of_all_prompts_not_of_those_picked():
    # 0 of 3 against 3 of 3 has p = 2 / 20: never separated. At n = 4 p = 2 / 70 = 0.029: alone yes, among two no.
    assert not changed_prompts([0], [3], n=3)[0][0].separated
    assert changed_prompts([0], [4], n=4)[0][0].separated
    assert not changed_prompts([0, 4], [4, 4], n=4)[0][0].separated


def test_no_change_is_found_where_none_is():
    # One policy sampled twice, many hard prompts: hundreds turn, hardly ever is one told apart.
    rng = np.random.default_rng(0)
    rates = rng.beta(0.3, 1.0, size=400)
    turned = wrong = 0
    for _ in range(20):
        base, trained = (rng.binomial(16, rates).tolist() for _ in range(2))
        new, lost = changed_prompts(base, trained, n=16)
        turned += len(new) + len(lost)
        wrong += any(change.separated for change in new + lost)
    assert turned > 400
    assert wrong <= 3


@pytest.mark.parametrize(("n", "limit"), [(1, 0.95), (2, 1 - 0.05**0.5), (300, 0.01)])
def test_rate_limit(n, limit):
    # The highest rate at which n wrong samples in a row still have a chance of 5 %.
    assert module.rate_limit(n) == pytest.approx(limit, abs=1e-4)
    assert (1 - module.rate_limit(n)) ** n == pytest.approx(0.05)


def test_separable_from():
    assert module.separable_from(4, prompts=1) == 4  # 2 / 70, but 3 of 4: 2 C(4,3) / C(8,3) = 1 / 7
    assert module.separable_from(4, prompts=2) is None
    # n = 8: 5 of 8 has p = 2 C(8,5) / C(16,5) = 0.0256; 4 of 8: 2 C(8,4) / C(16,4) = 0.077
    assert module.separable_from(8, prompts=1) == 5


def test_sizes():
    assert draw_sizes(16) == [1, 2, 4, 8, 16]
    assert draw_sizes(12, evaluated=(1, 3, 32)) == [1, 2, 3, 4, 8, 12]
    assert draw_sizes(1) == [1]


def test_pass_at_k_and_its_bound(passk_result):
    # n = 2: base counts 0 and 1, so pass@1 = 1/4, pass@2 = 1/2; trained 1 and 2: 3/4 and 1.
    rows = boundary(passk_result(base=[0, 1] * 10, trained=[1, 2] * 10, n=2)).rows
    assert [row.k for row in rows] == [1, 2]
    assert [(row.base.value, row.trained.value, row.gain.value) for row in rows] == [(0.25, 0.75, 0.5), (0.5, 1, 0.5)]
    assert [(row.base_bound, row.trained_bound) for row in rows] == [(0.25, 0.75), (0.5, 1.0)]
    # n = 4, counts 1 and 3: E[(1-p)^2] from pairs is (C(3,2) + C(1,2)) / 2 C(4,2) = 1/4, so at k = 4 1 - (1/4)^2.
    last = boundary(passk_result(base=[1, 3] * 10, trained=[1, 3] * 10, n=4)).rows[-1]
    assert last.base == (1, pytest.approx(0.05 ** (1 / 20)), 1)
    assert last.base_bound == pytest.approx(15 / 16)


def test_statements_say_what_is_not_known(passk_result):
    lines = boundary_statements(boundary(passk_result(base=[0, 3, 0, 5, 0], trained=[8, 0, 0, 6, 1])))
    assert "2 newly solved, 1 lost, 1 solved by both, 1 by neither" in lines[0]
    assert "Of the 2 newly solved, sampling noise is excluded for 1" in lines[1]
    assert "#0 0 → 8*, #4 0 → 1." in lines[1]
    assert "excluded for 0" in lines[2]
    assert "excludes only rates above 0.312" in lines[3]  # 1 - 0.05^(1/8)
    assert "not even 2 of 2" in boundary_statements(boundary(passk_result([0, 1], [2, 1], n=2)))[-1]


def test_table_has_a_row_per_k(passk_result):
    table = boundary_table(boundary(passk_result(base=[0, 1] * 10, trained=[1, 2] * 10, n=2)))
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert table.rows[0][1].startswith("0.250 [")
    assert table.rows[1][4] == "1.000"


def test_broken_results_are_refused(passk_result):
    complete = passk_result([0, 1], [1, 2])
    with pytest.raises(module.InputError, match="'trained'"):
        boundary({key: value for key, value in complete.items() if key != "trained"})
    with pytest.raises(module.InputError, match="2 base and 3 trained"):
        boundary(passk_result([0, 1], [1, 2, 3]))


def test_picture_shows_every_prompt_once(passk_result, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b"")))
    result = boundary(passk_result(base=[0, 3, 0, 5, 0, 0], trained=[8, 0, 0, 6, 1, 1]))
    module.plot_boundary(result, tmp_path / "unused.png")
    curves, rates = figures[0].axes
    solved, lost, others = rates.collections
    assert solved.get_offsets().tolist() == [[0, 1 / 8], [0, 1]]
    assert lost.get_offsets().tolist() == [[3 / 8, 0]]
    assert others.get_offsets().tolist() == [[0, 0], [5 / 8, 6 / 8]]
    assert solved.get_sizes()[0] > solved.get_sizes()[1]  # two prompts at 0 -> 1, one at 0 -> 8
    assert curves.get_xscale() == "log"
    drawn = {line.get_label(): list(line.get_ydata()) for line in curves.lines}
    assert drawn["trained"] == [row.trained.value for row in result.rows]
    assert drawn["base"] == [row.base.value for row in result.rows]
    assert len(curves.collections) == 2


def test_command(make_run, make_rows, passk_result, capsys):
    counts = passk_result([0] * 6 + [4] * 6, [8] * 6 + [4] * 6)
    passk = {**counts, "others": {"parity@2": passk_result([8] * 12, [0] * 12, n=8)}}
    folder = make_run("A", "A", make_rows(2), passk=passk)
    assert module.main(["--run", str(folder)]) == 0
    assert "6 newly solved, 0 lost" in " ".join(capsys.readouterr().out.split())
    with Image.open(folder / "boundary.png") as picture:
        picture.load()
        assert picture.format == "PNG"
    assert module.main(["--run", str(folder), "--other", "parity@2"]) == 0
    assert "0 newly solved, 12 lost" in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in folder.glob("boundary*")) == ["boundary.png", "boundary_parity@2.png"]


def test_command_names_the_cure(make_run, make_rows, passk_result, capsys):
    bare = make_run("bare", "A", make_rows(2))
    assert module.main(["--run", str(bare)]) == 2
    assert f"python -m eval.passk --run {bare}" in capsys.readouterr().err
    folder = make_run("A", "A", make_rows(2), passk=passk_result([0, 1], [1, 2]))
    assert module.main(["--run", str(folder), "--other", "parity@2"]) == 2
    assert "it has: none" in capsys.readouterr().err
    (folder / "passk.json").write_text(json.dumps({"n": 8}))
    assert module.main(["--run", str(folder)]) == 2
    assert "passk.json': it has no 'k'" in capsys.readouterr().err
    assert not list(folder.glob("boundary*"))
