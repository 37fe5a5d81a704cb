"""A table from its columns: one object says everything of a column."""

import io

from rich.console import Console

from eval.pages.table import Column, Table, table_of


COLUMNS = [
    Column("name", lambda row: row["name"], "**name**: of the row."),
    Column(lambda rows: f"of {len(rows)}", lambda row: str(row["value"]), group="Numbers"),
    Column("twice", lambda row: str(2 * row["value"]), "**twice**: the value, doubled.", "Numbers"),
    Column("note", lambda row: row["note"], "**note**: where there is one.", applies=lambda rows: "note" in rows[0]),
    Column("cost", lambda row: "0", group="Cost"),
]


def test_markdown():
    table = Table("title", ["a", "b"], [["1", "–"]], ["a note"])
    assert table.to_markdown() == "| a | b |\n| --- | --- |\n| 1 | – |\n\na note"


def test_columns_by_hand():
    rows = [{"name": "a", "value": 1}, {"name": "b", "value": 4}]
    table = table_of("t", COLUMNS, rows, ["below"], ["last"])
    assert table == Table(
        "t",
        ["name", "of 2", "twice", "cost"],
        [["a", "1", "2", "0"], ["b", "4", "8", "0"]],
        ["below"],
        ["**name**: of the row.", "**twice**: the value, doubled.", "last"],
        [("", 1), ("Numbers", 2), ("Cost", 1)],
    )


def test_a_column_is_shown_where_it_belongs():
    table = table_of("t", COLUMNS, [{"name": "a", "value": 1, "note": "!"}])
    assert table.header == ["name", "of 1", "twice", "note", "cost"] and table.rows == [["a", "1", "2", "!", "0"]]
    # Its neighbours' group ends where it begins.
    assert table.groups == [("", 1), ("Numbers", 2), ("", 1), ("Cost", 1)]
    assert table_of("t", COLUMNS[:1], [{"name": "a"}]).groups == []


def test_narrow_is_for_80_columns():
    table = Table("t", ["what", "value"], [["a name,\nsecond line", "0.5"]])
    shown = []
    for narrow in (False, True):
        out = io.StringIO()
        Console(file=out, width=80).print(table.to_rich(narrow=narrow))
        shown.append(out.getvalue())
    assert "┃ what " in shown[0] and "a name, second line" in shown[0]
    assert not any(line.startswith(("┃", "│", "┏")) for line in shown[1].splitlines())
    assert "    a name, │   0.5" in shown[1] and "second line │" in shown[1]
