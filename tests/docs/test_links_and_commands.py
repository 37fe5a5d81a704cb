"""What a reader clicks leads somewhere, and what a reader copies exists."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from doc_pages import PAGES, ROOT, anchors, blocks, commands, links, named_file

from trl_prorl.commands import COMMANDS
from trl_prorl.demo import DEMOS
from trl_prorl.eval import command_lines
from trl_prorl.launch.shipped_recipes import shipped_recipes


def name(page):
    return str(page.relative_to(ROOT))


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text()):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def test_every_relative_link_leads_somewhere():
    assert {name(page): found for page in PAGES if (found := broken(page))} == {}
    inside = [link for page in PAGES for link in links(page.read_text()) if ".md#" in link]
    assert len(inside) > 20  # there is something to check, anchors too


def test_every_page_is_in_the_index():
    docs = ROOT / "docs"
    indices = (docs / "README.md", docs / "gpu" / "README.md")  # the second one lists the cards
    listed = {
        (index.parent / link.partition("#")[0]).resolve() for index in indices for link in links(index.read_text())
    }
    folders = {docs, ROOT / "study"}
    pages = {page for page in PAGES if folders & {*page.parents} and page != docs / "README.md"}
    assert pages - listed == set()
    assert docs / "quickstart.ipynb" in listed


TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# Programs of which nothing but the name can be checked here.
OTHERS = {"pip", "apt-get", "cd", "git", "huggingface-cli", "hf", "jupyter"}


def why_wrong(command: str, page: str) -> str | None:
    """What in a command of a page does not exist, or `None`."""
    words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    program, *rest = words
    if program == "make":
        missing = [word for word in rest if "=" not in word and word not in TARGETS]
        return f"no target {missing}" if missing else None
    if program == "trl-prorl":
        if not rest or rest[0] not in {*COMMANDS, "--help", "COMMAND"}:
            return f"no command {rest[:1]}"
        recipe = rest[1] if rest[0] == "train" and len(rest) > 1 and not rest[1].startswith("-") else None
        known = recipe in (None, "RECIPE") or recipe in shipped_recipes() or recipe.startswith("my_")
        return None if known else f"no recipe {recipe}"
    if program == "accelerate":
        config = rest[rest.index("--config_file") + 1] if "--config_file" in rest else None
        if config and not (ROOT / config).is_file():
            return f"no {config}"
        # The launcher's options come first.
        rest = rest[next(i for i, word in enumerate(rest) if word == "-m" or word.endswith(".py")) :]
        program = "python"
    if program == "python" and rest[0] == "-m":
        module = rest[1]
        path = Path(*module.removeprefix("trl_prorl.").split("."))
        files = (path.with_suffix(".py"), path / "__main__.py")
        places = [base / file for base in (ROOT, ROOT / "trl_prorl") for file in files]
        return None if module == "pytest" or any(place.is_file() for place in places) else f"no module {module}"
    if program == "python" and rest[0] != "-c":
        own = rest[0].startswith("my_") or f"```python\n# {rest[0]}\n" in page
        if not (ROOT / rest[0]).is_file() and not own:
            return f"no script {rest[0]}"
        given = [rest[i + 1] for i, word in enumerate(rest) if word == "--config"]
        missing = [path for path in given if path.startswith("recipes/") and not (ROOT / path).is_file()]
        return f"no recipe {missing}" if missing else None
    return None if program in {*OTHERS, "python"} else f"what is {program}?"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_names_what_exists(page):
    text = page.read_text()
    inline = re.findall(r"`((?:python|make|accelerate|trl-prorl) [^`…]+)`", text)
    told = [command for command in [*commands(text), *inline] if command != "accelerate launch"]
    assert {command: reason for command in told if (reason := why_wrong(command, text))} == {}


@pytest.mark.parametrize("name", ["passk", "drift"])
def test_every_evaluation_takes_the_options_that_pages_give_it(name, monkeypatch):
    """But for the plugins and the runs, which are not here."""
    monkeypatch.setattr(command_lines, "_find_runs", lambda args: args)
    monkeypatch.setattr(command_lines, "load_plugin", lambda file, may_have_rows: None)
    told = [shlex.split(command) for page in PAGES for command in commands(page.read_text())]
    given = [words[2:] for words in told if words[:2] == ["trl-prorl", name]]
    assert given
    for options in given:
        getattr(command_lines, name)(options)


def test_the_front_page_has_its_commands():
    found = commands((ROOT / "README.md").read_text())
    assert {"make demo", "make test", "pip install -e ."} <= set(found)
    assert len(found) >= 6


def test_every_recipe_that_is_named_exists():
    named = {
        (name(page), path)
        for page in PAGES
        for path in re.findall(r"(?:study/)?recipes/[\w./-]+[\w]", page.read_text())
    }
    assert [place for place in named if not (ROOT / place[1]).exists()] == []


def test_yaml_of_the_pages_is_yaml_without_misspelt_keys():
    from trl import ModelConfig

    from trl_prorl import ProRLConfig
    from trl_prorl.train import TaskArguments

    known = {key for cls in (ProRLConfig, TaskArguments, ModelConfig) for key in cls.__dataclass_fields__}
    found = [(page, block.text) for page in PAGES for block in blocks(page.read_text()) if block.language == "yaml"]
    assert len(found) >= 5
    for page, text in found:
        assert set(yaml.safe_load(text) or {}) <= known, page


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nothing_was_left_to_be_filled_in(page):
    prose = re.sub(r"`[^`\n]*`|```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\b(?!CONTRIBUTING)[A-Z]{10,}\b|TODO|FIXME|XXX", prose) == []


def test_python_of_the_pages_compiles():
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "python" and not block.text.startswith("# tasks/registry.py"):
                compile(block.text, str(page), "exec")


def test_the_script_that_adds_a_chat_template(tmp_path, tiny_model, monkeypatch):
    """docs/howto-model.md, on the tokenizer of the tiny model without its own."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    page = (ROOT / "docs" / "howto-model.md").read_text()
    monkeypatch.setattr("sys.argv", ["with_template.py", str(tmp_path)])
    exec(compile(named_file(page, "with_template.py"), "with_template.py", "exec"), {})
    text = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        [{"role": "user", "content": "2+2?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "2+2?\nAnswer: "


def left_by_the_demo(path: str) -> bool:
    """Whether `make demo` leaves a path below `runs/demo`: its arms, the files of a run, and those of the report."""
    arm, _, rest = path.removeprefix("runs/demo/").partition("/")
    return arm in ("*", "report.html", "report.md") or (arm in DEMOS["embedded"]["arms"] and not rest.strip("/"))


SPEAKING = [*PAGES, ROOT / "docs" / "quickstart.ipynb", *ROOT.glob("eval/*.py"), *ROOT.glob("trl_prorl/**/*.py")]


def test_what_the_pages_name_is_there_after_the_demo():
    paths = re.compile(r"runs/demo/[\w./*-]*[\w*]")
    named = {(name(page), path) for page in SPEAKING for path in paths.findall(page.read_text())}
    assert [place for place in named if not left_by_the_demo(place[1])] == []
    assert len(named) > 10
