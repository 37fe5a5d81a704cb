"""Names from elsewhere reach a terminal and a report as text: no escape code, tag or markup in them acts."""

import io
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from run_record import write_run

from trl_prorl.eval import report
from trl_prorl.eval.pages.document import Bullets, Code, Report, Section, Text, inline, to_markdown
from trl_prorl.eval.pages.table import Table
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.hub.card import model_card
from trl_prorl.text import shell_quote, visible, without_html


EVIL = "\x1b[31mred\x1b]0;title\x07 <img src=x onerror=alert(1)> [bold]b[/bold] a|b \u202egnp"


def test_by_hand():
    assert visible("a\x1b[31mb\nc\td") == r"a\x1b[31mb c d"
    assert visible("τ × naïve 日本") == "τ × naïve 日本"
    assert without_html("a < b & c `x < y` <b>") == r"a \< b \& c `x < y` \<b>"


@given(st.text(max_size=60))
def test_nothing_that_acts_is_left(text):
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", visible(text))
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(without_html(visible(text)))
    tags = set(re.findall(r"</?([a-zA-Z]\w*)", html))
    assert tags <= set("p em strong code pre h1 h2 h3 h4 h5 h6 ul ol li hr s a img blockquote".split())
    assert "<script" not in html
    assert "onerror" not in html


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the word")
def test_a_word_that_is_copied_is_what_is_seen():
    names = [EVIL, "it's", "back\\slash\x01", "new\nline", "$(x) `y`", "byte \udcff", "\u2028\xad\u061c\ue000"]
    words = [shell_quote(name) for name in names]
    assert [visible(word) for word in words] == words
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {' '.join(words)}"], capture_output=True, check=True)
    assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == names
    assert shell_quote("runs/A b") == "'runs/A b'"


def test_nothing_of_a_hostile_run_acts_on_page_and_card(tmp_path, capsys):
    """Its folder's name, its variant, its task and the split of its evaluation."""
    side = {"correct": [1, 2], "pass@1": 0.5, "interval@1": [0.1, 0.9]}
    passk = {"split": "t;rm\x1b", "prompts": 2, "n": 2, "k": [1], "temperature": 1.0, "seed": "\u202e"}
    passk |= {"task": EVIL, "base": side, "trained": side}
    env = {"variant": f"A{EVIL}", "seed": 0, "command": "x --plugin a\x01;rm"}
    folder = tmp_path / f"$x_{{$ \x1b[2J\u202e{EVIL[:9]}"
    rows = [{"step": step, "reward": 0.5} for step in range(1, 5)]
    write_run(folder, {"task": "parity", "model_name_or_path": EVIL}, rows, env=env, passk=passk)
    assert report.main(["--runs", str(folder), "--out", str(tmp_path)]) == 0
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    for text in (page, markdown, str(model_card(folder)), capsys.readouterr().out):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
    assert r"--split $'t;rm\x1b'" in markdown
    assert r"--plugin $'a\x01;rm'" in markdown


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
