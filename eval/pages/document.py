"""A report as a list of sections, and what is made of it: markdown, and one HTML page that needs nothing beside it."""

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from trl_prorl.eval.pages.plotting import Panel, write_sheet, write_svg_sheet
from trl_prorl.eval.pages.table import Table
from trl_prorl.text import visible, without_html


TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html.jinja"
LONGEST_SHORT_CELL = 24
# Emphasis and code alone: whatever a run is called, its name makes no link, no picture and no HTML.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(["image", "link", "autolink", "entity"])
_INTERVAL = re.compile(r" (\[[^\]<]*\])(?=$| )")


@dataclass(frozen=True)
class Text:
    """A paragraph in markdown."""

    markdown: str


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
    A picture: one `file` beside the markdown, its panels one by one in the page, where they fold to one column; `alt`
    says what it shows for readers who do not see it, and `columns` are the panels in a row where there is room.
    """

    file: str
    alt: str
    caption: str
    panels: list[Panel]
    columns: int = 2

    def write(self, folder: Path) -> None:
        """Write the file into a folder, and the same as SVG beside it."""
        path = folder / self.file
        write_sheet(self.panels, path, self.columns)
        write_svg_sheet(self.panels, path.with_suffix(".svg"), self.columns)


Block = Text | Bullets | Code | Picture | Table


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; in the page they are folded unless the section is `open`."""

    title: str
    blocks: list[Block]
    open: bool = False

    @property
    def anchor(self) -> str:
        """The heading as GitHub would make it an anchor, of ASCII letters and digits alone."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """A report: what stands before the first section, and the sections in order, whose titles differ."""

    title: str
    lead: list[Text]
    sections: list[Section] = field(default_factory=list)

    def pictures(self) -> list[Picture]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def _block_markdown(block: Block) -> str:
    match block:
        case Text():
            return without_html(visible(block.markdown))
        case Bullets():
            return "\n".join(f"- {without_html(visible(item))}" for item in block.items)
        case Code():
            lines = visible_lines(block.text)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", lines)), default=0))
            return f"{fence}\n{lines}\n{fence}"
        case Picture():
            caption = without_html(visible(block.caption))
            return f"![{without_html(visible(block.alt))}]({block.file})" + (f"\n\n{caption}" if caption else "")
        case Table():
            return block.to_markdown()


def to_markdown(report: Report) -> str:
    """Return the report as GitHub markdown; its pictures are files beside it."""
    parts = [f"# {without_html(visible(report.title))}", *map(_block_markdown, report.lead)]
    for section in report.sections:
        parts += [f"## {without_html(visible(section.title))}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"


def inline(text: str) -> Markup:
    """Markdown of one line (emphasis and code) as HTML; everything else is escaped."""
    return Markup(_MARKDOWN.renderInline(visible(text)))


def cell(text: str) -> Markup:
    """Return a table cell; an interval, outside code, goes onto a line of its own, in smaller type."""
    html = inline(text)
    return html if "`" in text else Markup(_INTERVAL.sub(r' <span class="interval">\1</span>', str(html)))


def short(text: str) -> bool:
    """Return whether a cell, its interval aside, should stay on one line."""
    return len(_INTERVAL.sub("", text)) <= LONGEST_SHORT_CELL


def breakable(html: Markup) -> Markup:
    """Let names of runs break where a person would break them."""
    return Markup(re.sub(r"([_/])(?![^<]*>)", r"\1<wbr>", str(html)))


def visible_lines(text: str) -> str:
    return "\n".join(map(visible, text.split("\n")))


def as_shown(value):
    """Make what stands in the page without a filter visible; a name may hold control characters."""
    return visible(value) if type(value) is str else value


def data_uri(panel: Panel) -> str:
    """Return the panel as a PNG inside the page."""
    return f"data:image/png;base64,{base64.b64encode(panel.png).decode()}"


def to_html(report: Report) -> str:
    """Return the report as an HTML page; pictures are drawn panel by panel."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=as_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": inline, "cell": cell, "breakable": breakable, "data_uri": data_uri}
    environment.filters["code"] = lambda text: escape(visible_lines(text))
    environment.tests |= {
        name: lambda block, name=name: type(block).__name__ == name
        for name in ("Text", "Bullets", "Code", "Picture", "Table")
    }
    environment.tests["short"] = short
    return environment.get_template(PAGE).render(report=report)
