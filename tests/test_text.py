"""Names from elsewhere reach a terminal and a report as text: no escape code, tag or markup in them acts."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from eval.pages.document import Bullets, Code, Report, Section, Text, inline, to_markdown
from eval.pages.table import Table
from eval.samples.sampling import progress
from trl_prorl.text import visible, without_html


EVIL = "\x1b[31mred\x1b]0;title\x07 <img src=x onerror=alert(1)> [bold]b[/bold] a|b \u202egnp"


def test_by_hand():
    assert visible("a\x1b[31mb\nc\td") == r"a\x1b[31mb c d"
    assert visible("τ × naïve 日本") == "τ × naïve 日本"
    assert without_html("a < b & c `x < y` <b>") == r"a \< b \& c `x < y` \<b>"


@given(st.text(max_size=60))
def test_nothing_that_acts_is_left(text):
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", visible(text))
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(without_html(visible(text)))
    tags = set(re.findall(r"</?([a-zA-Z]\w*)", html))
    assert tags <= set("p em strong code pre h1 h2 h3 h4 h5 h6 ul ol li hr s a img blockquote".split())
    assert "<script" not in html
    assert "onerror" not in html


def test_a_table_on_a_terminal_and_in_markdown():
    table = Table(EVIL, ["run", "x"], [[EVIL, "[red]1[/red]"]], [EVIL])
    console = Console(file=io.StringIO(), force_terminal=True, width=300, color_system=None)
    console.print(table.to_rich())
    shown = console.file.getvalue()
    # rich's own codes are there (the title is italic); those of the names are not.
    assert "\x1b[31m" not in shown
    assert "\x1b]0" not in shown
    assert "\x07" not in shown
    assert "[bold]b[/bold]" in shown
    assert "[red]1[/red]" in shown
    markdown = table.to_markdown()
    assert "<img" not in markdown.replace(r"\<img", "")
    assert "\x1b" not in markdown
    assert r"a\|b" in markdown


def test_the_whole_report():
    report = Report(EVIL, [Text(EVIL)], [Section(EVIL, [Bullets([EVIL]), Code("a ``` b\nc\x1b[0m")])])
    text = to_markdown(report)
    assert "\x1b" not in text
    assert "<img" not in text.replace(r"\<img", "")
    assert "````\na ``` b\nc\\x1b[0m\n````" in text
    assert "\x1b" not in inline(EVIL)
    assert "<img" not in inline(EVIL)


def test_an_error_is_told_as_text(forks, tmp_path):
    status, written = forks.run("-m", "eval.passk", "--run", str(tmp_path / "\x1b[31mx"))
    assert status == 2
    assert "\x1b" not in written
    assert r"\x1b[31mx" in written


def test_short_work_writes_no_progress_into_a_log_file(capsys):
    with progress(40, "runs/A: trained") as bar:
        for _ in range(10):
            bar.update(4)
    assert capsys.readouterr().err == ""
