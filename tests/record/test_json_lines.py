"""A file of one JSON object on each line, which survives a run that was cut short."""

from trl_prorl.run_files import JsonLines, read_jsonl


def test_the_last_line_alone_is_changed(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    assert not log.add_to_last(1, "seconds", 1.0)  # there is no row
    for step in (1, 2):
        log.write({"step": step})
    assert not log.add_to_last(1, "seconds", 1.0)  # it is not the last row's
    for seconds in (1.5, 2e6):
        assert log.add_to_last(2, "seconds", seconds)
    log.write({"step": 3})
    assert read_jsonl(log.path) == [{"step": 1}, {"step": 2, "seconds": 2_000_001.5}, {"step": 3}]
