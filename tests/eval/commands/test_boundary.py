from PIL import Image

from eval import boundary as command


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
