"""Reading and splitting a file, whatever the task; the task `math` stands for all."""

import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.loaded import load_problems, read_jsonl
from trl_prorl.tasks.math import parse_problem


def rows_of(numbers):
    return [{"problem": f"What is {i} times {i + 1}?", "answer": str(i * (i + 1))} for i in numbers]


def questions(problems):
    return sorted(problem.question for problem in problems)


def load(path):
    return {split: questions(problems) for split, problems in load_problems("math", path, parse_problem).items()}


def test_a_file_is_split_by_content(tmp_path, write_jsonl):
    whole = load(write_jsonl(tmp_path / "whole.jsonl", rows_of(range(1000))))
    assert sorted(sum(whole.values(), [])) == sorted(row["problem"] for row in rows_of(range(1000)))
    # Four standard deviations of a tenth of 1000 are 38.
    assert abs(len(whole["test"]) - 100) < 38
    assert abs(len(whole["validation"]) - 100) < 38
    part = load(write_jsonl(tmp_path / "part.jsonl", rows_of(range(600, 300, -1))))
    assert all(set(part[split]) <= set(whole[split]) for split in whole)


def test_a_folder_has_its_own_test_file(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "train.jsonl", rows_of(range(200)))
    write_jsonl(tmp_path / "test.jsonl", rows_of(range(150, 250)))
    splits = load(tmp_path)  # training questions that are in test are dropped
    assert splits["test"] == sorted(row["problem"] for row in rows_of(range(150, 250)))
    assert sorted(splits["train"] + splits["validation"]) == sorted(row["problem"] for row in rows_of(range(150)))
    assert 3 <= len(splits["validation"]) <= 30


def test_equal_questions_count_once_and_other_answers_are_said(tmp_path, write_jsonl, caplog):
    rows = rows_of(range(10)) + [dict(row, problem=row["problem"].upper() + " ") for row in rows_of(range(10))]
    splits = load(write_jsonl(tmp_path / "twice.jsonl", rows))
    # The first of them is kept.
    assert sorted(sum(splits.values(), [])) == sorted(row["problem"] for row in rows[:10])
    assert caplog.messages == []
    rows += [dict(rows[3], answer="77"), dict(rows[4], answer="88")]
    assert load(write_jsonl(tmp_path / "twice.jsonl", rows)) == splits
    (line,) = caplog.messages
    assert "2 rows" in line and "row 20" in line and "'77'" in line and "\n" not in line


def test_seeds_shuffle_and_the_order_of_the_file_does_not_matter(tmp_path, write_jsonl):
    forth = get_task("math", path=write_jsonl(tmp_path / "forth.jsonl", rows_of(range(60))))
    back = get_task("math", path=write_jsonl(tmp_path / "back.jsonl", rows_of(reversed(range(60)))))
    assert forth.rows("train", None, 1)[:] == back.rows("train", None, 1)[:]
    assert forth.rows("train", None, 1)["answer"] != forth.rows("train", None, 2)["answer"]
    assert forth.rows("train", 5, 1)[:] == forth.rows("train", None, 1)[:5]


def test_neither_separators_inside_a_text_nor_a_byte_order_mark_change_a_row(tmp_path):
    (tmp_path / "a.jsonl").write_text('\ufeff{"problem": "a\u2028b\x85c", "answer": "1"}\r\n\n', encoding="utf-8")
    assert read_jsonl(tmp_path / "a.jsonl") == [{"problem": "a\u2028b\x85c", "answer": "1"}]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_that_is_not_utf_8_is_refused_in_a_line_with_the_cure(tmp_path, encoding):
    (tmp_path / "a.jsonl").write_text('{"problem": "caf\u00e9", "answer": "1"}\n', encoding=encoding)
    with pytest.raises(ValueError, match=r"^path='.*a.jsonl' is not UTF-8: .* iconv [^\n]*$"):
        read_jsonl(tmp_path / "a.jsonl")
