"""The project's pages as text: what a reader of one would click, copy and run."""

import re
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/README.md"), *ROOT.glob("study/**/*.md")]
PAGES = sorted(PAGES)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*match) for match in FENCE.findall(text)]


def named_file(text: str, name: str) -> str:
    """The block whose first line is `# name`."""
    found = [block.text for block in blocks(text) if block.text.startswith(f"# {name}\n")]
    assert len(found) == 1, f"{len(found)} blocks begin with '# {name}'"
    return found[0]


def links(text: str) -> list[str]:
    """Where a page's links and pictures lead."""
    return LINK.findall(FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """`<a id>`, and GitHub's anchors of headings: lower case, no punctuation, hyphens, a number for a repetition."""
    found: dict[str, int] = {}
    result = set(re.findall(r'<a id="([\w-]+)"></a>', text))
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        result.add(f"{anchor}-{number}" if number else anchor)
    return result


def commands(text: str) -> list[str]:
    """Shell commands of a page, from `bash` blocks and text indented by four: lines joined, comments cut."""
    text = re.sub(r" *\\\n *", " ", text)
    lines = [line for block in blocks(text) if block.language == "bash" for line in block.text.split("\n")]
    lines += [line[4:] for line in FENCE.sub("", text).split("\n") if re.match(r" {4}[a-z]", line)]
    return [command for line in lines if (command := re.split(r"(?:^| +)#", line)[0].strip())]
