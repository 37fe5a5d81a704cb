from matplotlib.figure import Figure
from PIL import Image

from eval import boundary as command
from eval.analysis.boundary import boundary
from eval.pages.boundary import boundary_statements, boundary_table, plot_boundary


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
    assert table.rows[1][2].startswith("1.000")


def test_picture_shows_both_sides(passk_result, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b"")))
    result = boundary(passk_result(base=[0, 3, 0, 5, 0, 0], trained=[8, 0, 0, 6, 1, 1]))
    plot_boundary(result, tmp_path / "unused.png")
    (curves,) = figures[0].axes
    assert curves.get_xscale() == "log"
    drawn = {line.get_label(): list(line.get_ydata()) for line in curves.lines}
    assert drawn["trained"] == [row.trained.value for row in result.rows]
    assert drawn["base"] == [row.base.value for row in result.rows]
    assert len(curves.collections) == 2


def test_command(make_run, make_rows, passk_result, capsys):
    passk = passk_result([0] * 6 + [4] * 6, [8] * 6 + [4] * 6)
    folder = make_run("A", "A", make_rows(2), passk=passk)
    assert command.main(["--run", str(folder)]) == 0
    assert "6 newly solved, 0 lost" in " ".join(capsys.readouterr().out.split())
    with Image.open(folder / "boundary.png") as picture:
        picture.load()
        assert picture.format == "PNG"
    bare = make_run("bare", "A", make_rows(2))
    assert command.main(["--run", str(bare)]) == 2
    assert f"trl-prorl passk --run {bare}" in capsys.readouterr().err and not list(bare.glob("boundary*"))
