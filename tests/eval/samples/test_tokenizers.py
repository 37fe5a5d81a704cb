"""A tokenizer of a run's folder that cannot be read: one line with the folder's name."""

import json

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


@pytest.mark.parametrize(
    "key, value", [("model_max_length", "x"), ("model_max_length", [1]), ("model_input_names", "x")]
)
def test_a_value_of_another_kind_in_a_tokenizer_is_one_line(run_dir, key, value, capsys):
    file = run_dir / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    for main in (passk.main, drift.main):
        assert str(run_dir) in error_of(main, ["--run", str(run_dir)], capsys)
