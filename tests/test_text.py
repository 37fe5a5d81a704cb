"""Names from elsewhere reach a terminal and a report as text: no escape code, tag or markup in them acts."""

import re
import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from run_record import write_run

from trl_prorl.eval import report
from trl_prorl.eval.pages.page import Section, to_html
from trl_prorl.eval.pages.table import Table
from trl_prorl.hub.card import model_card
from trl_prorl.run.provenance import passk_command
from trl_prorl.text import plain_markdown, shell_quote, shell_words, visible


EVIL = "\x1b[31mred\x1b]0;title\x07 <img src=x onerror=alert(1)> [bold]b[/bold] a|b \u202egnp"


@given(st.text(max_size=60))
@example("<script")
def test_nothing_that_acts_is_left(text):
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", visible(text))
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(plain_markdown(text))
    tags = set(re.findall(r"</?([a-zA-Z]\w*)", html))
    assert tags <= set("p em strong code pre h1 h2 h3 h4 h5 h6 ul ol li hr s a img blockquote".split())
    assert "<script" not in html
    assert "onerror" not in html


PIECES = st.sampled_from(
    ["`", "``", "\\", "<script>", "![i](http://t)", "[a](b)", "[a]: b", "[a]", "|", "&lt;", "a", " "]
)
STRANGE = st.lists(PIECES, max_size=8).map("".join)


@given(st.lists(STRANGE, min_size=2, max_size=2))
@example(["\\` <script> `", "\\\\<script>"])
@example(["` a", "<script> `"])
@example(["a", "\\``<script>`<script>`"])
@example(["``` <script> ``", "`a\\|<script>`"])
def test_a_page_of_any_texts_has_no_tag_of_theirs(texts):
    def tags(words):
        table = Table(f"{words[0]} title", words, [words, [f"`{word}`" for word in words]], words, words)
        html = to_html(words[0], words, [Section("section", text=words[0], tables=[table], lines=words)])
        return re.findall("<[a-z/!][^>]*>", re.sub('aria-label="[^"]*"', "", html))

    assert tags(texts) == tags(["a", "b"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the word")
def test_a_word_that_is_copied_is_what_is_seen():
    names = [EVIL, "it's", "back\\slash\x01", "new\nline", "$(x) `y`", "byte \udcff", "\u2028\xad\u061c\ue000"]
    words = [shell_quote(name) for name in names]
    assert [visible(word) for word in words] == words
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {' '.join(words)}"], capture_output=True, check=True)
    assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == names
    assert shell_quote("runs/A b") == "'runs/A b'"


def bash_words(command):
    """The words that bash reads in a printed command, whose program is a function that prints them."""
    script = f"trl-prorl() {{ printf '%s\\0' \"$@\"; }}; {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


# What a stranger's env.json may say after `--plugin `, and the one word that it is; `None`: a quote does not end.
PLUGINS = {
    "own.py": "own.py",
    "'my task.py'": "my task.py",
    "a;touch": "a;touch",
    "$(touch${IFS}PWNED)": "$(touch${IFS}PWNED)",
    "'a;'\"b c\"": "a;b c",
    "$'x\\' ; touch PWNED #'": None,
    "'x ; touch PWNED #": None,
    "x\\": None,
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the line")
@pytest.mark.parametrize("spelt", PLUGINS)
def test_a_plugin_out_of_a_file_is_one_word_for_bash(spelt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = bash_words(passk_command({"task": "t"}, {"command": f"trl-prorl train x.yaml --plugin {spelt}"}, "run"))
    plugin = PLUGINS[spelt]
    assert words[1:3] == (["--run", "run"] if plugin is None else ["--plugin", plugin])
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=9)))
def test_words_that_are_spelt_are_read_again(words):
    assert shell_words(" ".join(map(shell_quote, words))) == words


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the lines")
def test_no_word_of_a_stranger_acts_in_the_commands_of_the_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = "x; touch PWNED; $(touch PWNED) #"
    env = {"command": f"trl-prorl train --plugin {evil}", "base_model": {"name": evil, "hub_id": None}}
    write_run(tmp_path / "run", {"task": "parity"}, [{"step": 1}], env=env)
    lines = re.findall("`(trl-prorl train [^`]*)`", str(model_card(tmp_path / "run")))
    assert lines
    assert all("x;" in bash_words(line) for line in lines)  # a word of the option, no command
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nothing_of_a_hostile_run_acts_on_page_and_card(tmp_path, capsys):
    """Its folder's name, its variant, its task and the split of its evaluation."""
    side = {"correct": [1, 2], "pass@1": 0.5, "interval@1": [0.1, 0.9]}
    passk = {"split": "t;rm\x1b", "prompts": 2, "n": 2, "k": [1], "temperature": 1.0, "seed": 5}
    passk |= {"task": EVIL, "base": side, "trained": side, "max_new_tokens": 512, "prompt_ids": ["a", "b"]}
    env = {"variant": f"A{EVIL}", "seed": 0, "command": "x --plugin a\x01;rm"}
    folder = tmp_path / f"$x_{{$ \x1b[2J\u202e{EVIL[:9]}"
    rows = [{"step": step, "reward": 0.5} for step in range(1, 5)]
    write_run(folder, {"task": "parity", "model_name_or_path": EVIL}, rows, env=env, passk=passk)
    assert report.main(["--runs", str(folder), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    for text in (page, str(model_card(folder)), capsys.readouterr().out):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
