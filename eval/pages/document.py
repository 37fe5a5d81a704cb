"""A report as a list of sections, rendered as markdown and as one self-contained HTML page."""

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
MAX_SHORT_CELL = 24
# Only emphasis and code: the name of a run never becomes a link, a picture or HTML.
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
    """Commands to copy."""

    text: str


@dataclass(frozen=True)
class Picture:
    """
    A picture: one file next to the markdown; in the page its panels one by one, which fold to one column.

    Attributes:
        file (`str`): Name of the PNG.
        alt (`str`): Description for readers who cannot see it.
        caption (`str`): Text below it.
        panels (`list[Panel]`): Its panels.
        columns (`int`): Panels in a row if there is room.
    """

    file: str
    alt: str
    caption: str
    panels: list[Panel]
    columns: int = 2

    def write(self, folder: Path) -> None:
        """Write the PNG and the same picture as SVG into a folder."""
        path = folder / self.file
        write_sheet(self.panels, path, self.columns)
        write_svg_sheet(self.panels, path.with_suffix(".svg"), self.columns)


Block = Text | Bullets | Code | Picture | Table


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; folded in the page unless the section is `open`."""

    title: str
    blocks: list[Block]
    open: bool = False

    @property
    def anchor(self) -> str:
        """The heading as an anchor, as on GitHub, of ASCII letters and digits only."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """A report: its title, paragraphs before the first section, and sections with unique titles."""

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
    """Return the report as GitHub markdown; its pictures are separate files."""
    parts = [f"# {without_html(visible(report.title))}", *map(_block_markdown, report.lead)]
    for section in report.sections:
        parts += [f"## {without_html(visible(section.title))}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"


def inline(text: str) -> Markup:
    """Return one line of markdown (emphasis and code) as HTML; everything else is escaped."""
    return Markup(_MARKDOWN.renderInline(visible(text)))


def cell(text: str) -> Markup:
    """Return a table cell; an interval outside code gets its own line in smaller type."""
    html = inline(text)
    return html if "`" in text else Markup(_INTERVAL.sub(r' <span class="interval">\1</span>', str(html)))


def short(text: str) -> bool:
    """Return whether a cell without its interval should stay on one line."""
    return len(_INTERVAL.sub("", text)) <= MAX_SHORT_CELL


def breakable(html: Markup) -> Markup:
    """Allow line breaks in names of runs after `_` and `/`."""
    return Markup(re.sub(r"([_/])(?![^<]*>)", r"\1<wbr>", str(html)))


def visible_lines(text: str) -> str:
    return "\n".join(map(visible, text.split("\n")))


def as_shown(value):
    """Make unfiltered text visible: a name may contain control characters."""
    return visible(value) if type(value) is str else value


def data_uri(panel: Panel) -> str:
    """Return the panel as a PNG inside the page."""
    return f"data:image/png;base64,{base64.b64encode(panel.png).decode()}"


def to_html(report: Report) -> str:
    """Return the report as an HTML page; panels are drawn one by one."""
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
