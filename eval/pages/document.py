"""A report as a list of sections, from which both the markdown and the page are made."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from trl_prorl.eval.pages.panels import Panel, plot_sheet
from trl_prorl.eval.pages.table import Table
from trl_prorl.shown import visible, without_html


@dataclass(frozen=True)
class Text:
    """A paragraph in markdown; `note` sets it apart as a remark on what stands above."""

    markdown: str
    note: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list, each item in markdown."""

    items: list[str]


@dataclass(frozen=True)
class Code:
    """Lines to be copied."""

    text: str


@dataclass(frozen=True)
class Picture:
    """
    A picture: one file beside the markdown, its panels one by one in the page, where they fold to one column.

    Attributes:
        file (`str`): Name of the file that the markdown shows.
        alt (`str`): What it shows, in words for readers who do not see it.
        caption (`str`): Markdown below it.
        panels (`list[Panel]`): The panels, row by row.
        columns (`int`): Panels in a row where there is room.
        footnote (`str`): Text below the panels of the file, which may stand alone.
    """

    file: str
    alt: str
    caption: str
    panels: list[Panel]
    columns: int = 2
    footnote: str = ""

    def write(self, folder: Path) -> None:
        """Write the file into a folder."""
        plot_sheet(self.panels, folder / self.file, self.columns, self.footnote)


Block = Text | Bullets | Code | Picture | Table


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: list[Block]

    @property
    def anchor(self) -> str:
        """The heading as GitHub would make it an anchor, of ASCII letters and digits alone."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """
    A report.

    Attributes:
        title (`str`): Heading of the whole.
        lead (`list[Text]`): What stands before the first section.
        sections (`list[Section]`): In order; their titles differ.
    """

    title: str
    lead: list[Text]
    sections: list[Section] = field(default_factory=list)

    def pictures(self) -> list[Picture]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def said_once(report: Report, sentence: str) -> Report:
    """
    The report with a sentence where it first stands, and nowhere else: a table or a picture of its own brings it
    along.
    """
    seen = False

    def first(text: str) -> str:
        nonlocal seen
        if sentence not in text:
            return text
        kept = sentence if not seen else ""
        seen = True
        before, after = text.split(sentence, 1)
        return " ".join(filter(None, [before.strip(), kept, after.replace(sentence, "").strip()]))

    def texts(lines: list[str]) -> list[str]:
        return [text for line in lines if (text := first(line))]

    def cleaned(block: Block) -> Block | None:
        match block:
            case Text():
                return replace(block, markdown=text) if (text := first(block.markdown)) else None
            case Bullets():
                return replace(block, items=items) if (items := texts(block.items)) else None
            case Picture():
                return replace(block, caption=first(block.caption))
            case Table():
                return replace(block, notes=texts(block.notes))
        return block

    def all_cleaned(blocks: list) -> list:
        return [block for each in blocks if (block := cleaned(each)) is not None]

    lead = all_cleaned(report.lead)
    return replace(report, lead=lead, sections=[replace(s, blocks=all_cleaned(s.blocks)) for s in report.sections])


def _block_markdown(block: Block) -> str:
    match block:
        case Text():
            return without_html(visible(block.markdown))
        case Bullets():
            return "\n".join(f"- {without_html(visible(item))}" for item in block.items)
        case Code():
            lines = "\n".join(map(visible, block.text.splitlines()))
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", lines)), default=0))
            return f"{fence}\n{lines}\n{fence}"
        case Picture():
            caption = without_html(visible(block.caption))
            return f"![{without_html(visible(block.alt))}]({block.file})" + (f"\n\n{caption}" if caption else "")
        case Table():
            return block.to_markdown()


def to_markdown(report: Report) -> str:
    """The report as GitHub markdown; its pictures are files beside it."""
    parts = [f"# {without_html(visible(report.title))}", *map(_block_markdown, report.lead)]
    for section in report.sections:
        parts += [f"## {without_html(visible(section.title))}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"
