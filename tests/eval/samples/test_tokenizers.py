"""A tokenizer of a run's folder that cannot be read: one line with the folder's name."""

import pytest

from trl_prorl.eval import drift, passk


def error_of(main, argv, capsys):
    assert main(argv) == 2
    shown = capsys.readouterr().err.splitlines()
    (line,) = [line for line in shown if line and not line.startswith("Loading weights:")]  # a bar
    return line


@pytest.mark.parametrize("main", [passk.main, drift.main])
@pytest.mark.parametrize("content", [None, "version https://git-lfs.github.com/spec/v1\n"])
def test_a_run_s_tokenizer_that_is_lost_is_named(run_dir, main, content, capsys):
    file = run_dir / "tokenizer.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert str(run_dir) in error_of(main, ["--run", str(run_dir)], capsys)
