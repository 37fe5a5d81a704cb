"""Names from elsewhere reach a terminal and a report as text: no escape code, tag or markup in them acts."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from run_record import write_run

from trl_prorl.eval import report
from trl_prorl.hub.card import model_card
from trl_prorl.text import shell_quote, visible, without_html


EVIL = "\x1b[31mred\x1b]0;title\x07 <img src=x onerror=alert(1)> [bold]b[/bold] a|b \u202egnp"


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
    passk |= {"task": EVIL, "base": side, "trained": side, "max_new_tokens": 512, "prompt_ids": ["a", "b"]}
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
