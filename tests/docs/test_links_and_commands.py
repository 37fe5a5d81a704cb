"""What a reader clicks leads somewhere, and what a reader copies exists."""

import re
import shlex
from pathlib import Path

import nbformat
import pytest
import yaml
from doc_pages import PAGES, ROOT, anchors, blocks, commands, links
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.cli.shipped_recipes import shipped_recipes
from trl_prorl.commands import COMMANDS
from trl_prorl.eval import command_lines
from trl_prorl.train import TaskArguments


def name(page):
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    """The text of a page, and of a notebook that of its cells of text."""
    if page.suffix == ".md":
        return page.read_text()
    return "\n".join(cell.source for cell in nbformat.read(page, as_version=4).cells if cell.cell_type == "markdown")


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in links(text_of(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def test_every_relative_link_leads_somewhere():
    pages = [*PAGES, ROOT / "docs" / "quickstart.ipynb"]
    assert {name(page): found for page in pages if (found := broken(page))} == {}


TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def exists(command: str, page: str) -> bool:
    """Whether what a command of a page names is there: a target, a command and its recipe, a script."""
    program, *rest = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    if program == "make":
        return {word for word in rest if "=" not in word} <= TARGETS
    if program == "trl-prorl":
        named = rest[0] in {*COMMANDS, "--help", "COMMAND"}
        recipe = rest[1] if rest[0] == "train" and len(rest) > 1 and not rest[1].startswith("-") else "RECIPE"
        return named and (recipe == "RECIPE" or recipe in shipped_recipes() or recipe.startswith("my_"))
    if program == "python" and rest[0].endswith(".py"):
        own = rest[0].startswith("my_") or f"```python\n# {rest[0]}\n" in page
        return own or (ROOT / rest[0]).is_file()
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_names_what_exists(page):
    text = page.read_text()
    told = [*commands(text), *re.findall(r"`((?:python|make|trl-prorl) [^`…]+)`", text)]
    assert [command for command in told if not exists(command, text)] == []


FEATURES = yaml.safe_load((ROOT / "scripts" / "features.yaml").read_text())
OURS = ("trl-prorl", "python", "accelerate")
READERS = re.compile(r"runs/|my_|[A-Z]+$")  # names of a reader's own runs and recipes


def words_and_options(command: str) -> tuple[list[str], set[str]]:
    """What a command runs, without its launcher's options and a reader's own names; the names of its options."""
    command = re.sub(r"launch .*?(?=-m |\S+\.py\b)", "launch ", command)
    words = shlex.split(command)
    options = [index for index, word in enumerate(words) if word.startswith("--") or word == "SMALL"]
    before = words[: options[0]] if options else words
    names = {words[index].removeprefix("--") for index in options}
    if "SMALL" in names:
        names |= {*FEATURES["shared"]["small"], "output_dir"}
    return [word for word in before if not READERS.match(word)], names


def feature_commands() -> list[str]:
    """The commands of `make features`."""
    listed = [feature.get("do", []) for feature in FEATURES["features"].values()]
    return [command for do in listed for command in ([do] if isinstance(do, str) else do)]


def test_first_command_of_every_page_is_a_feature():
    """With other values. A page may begin with an installation, a target of make, or a script of its own."""
    features = [words_and_options(command) for command in feature_commands()]
    missing = []
    for page in PAGES:
        text = page.read_text()
        first = (commands(text) or [""])[0]
        if not first.startswith(OURS) or f"```python\n# {first.split()[-1]}\n" in text:
            continue
        words, options = words_and_options(first)
        if not any(words == run[: len(words)] and options <= names for run, names in features):
            missing.append(f"{name(page)}: {first}")
    assert missing == []


@pytest.mark.parametrize("name", ["passk", "drift"])
def test_every_evaluation_takes_the_options_that_pages_give_it(name, monkeypatch):
    """But for the plugins and the runs, which are not here."""
    monkeypatch.setattr(command_lines, "find_runs", lambda runs: runs)
    monkeypatch.setattr(command_lines, "load_plugin", lambda file: None)
    told = [shlex.split(command) for page in PAGES for command in commands(page.read_text())]
    given = [words[2:] for words in told if words[:2] == ["trl-prorl", name]]
    assert given
    for options in given:
        getattr(command_lines, name)(options)


def test_yaml_of_the_pages_is_yaml_without_misspelt_keys():
    known = {key for cls in (ProRLConfig, TaskArguments, ModelConfig) for key in cls.__dataclass_fields__}
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "yaml":
                assert set(yaml.safe_load(block.text) or {}) <= known, page


def test_python_of_the_pages_compiles():
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "python":
                compile(block.text, str(page), "exec")
