"""
A report as a list of sections, rendered as markdown and as one self-contained HTML page. A block of a section is
markdown (paragraphs, [`bullets`], [`~trl_prorl.text.code_block`]), a table or a picture.
"""

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from trl_prorl.eval.pages.plotting import Picture
from trl_prorl.eval.pages.table import Table
from trl_prorl.text import visible, without_html


TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html.jinja"
MAX_SHORT_CELL = 24
# The name of a run never becomes a link, a picture, a heading or HTML.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(
    ["image", "link", "autolink", "entity", "reference", "heading", "lheading", "hr", "blockquote"]
)
_INTERVAL = re.compile(r" (\[[^\]<]*\])(?=$| )")
Block = str | Picture | Table


def bullets(lines: list[str]) -> str:
    """Return a list, each item in markdown."""
    return "\n".join(f"- {visible(line)}" for line in lines)


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


def table_section(table: Table) -> Section | None:
    """Return a section with one table; `None` if the table has no row."""
    return Section(table.title, [table]) if table.rows else None


@dataclass(frozen=True)
class Report:
    """A report: its title, paragraphs before the first section, and sections with unique titles."""

    title: str
    lead: list[str]
    sections: list[Section]

    def pictures(self) -> list[Picture]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def _block_markdown(block: Block) -> str:
    if isinstance(block, Table):
        return block.to_markdown()
    if isinstance(block, Picture):
        picture = f"![{without_html(visible(block.alt))}]({block.file})"
        return "\n\n".join(filter(None, [picture, without_html(visible(block.caption))]))
    return without_html(block)


def to_markdown(report: Report) -> str:
    """Return the report as GitHub markdown; its pictures are separate files."""
    parts = [f"# {without_html(visible(report.title))}", *map(_block_markdown, report.lead)]
    for section in report.sections:
        parts += [f"## {without_html(visible(section.title))}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"


def markdown(text: str) -> Markup:
    """Return markdown as HTML: paragraphs, lists, code, emphasis; everything else is escaped."""
    return Markup(_MARKDOWN.render(text).replace("<pre>", '<pre tabindex="0">'))  # so that keys scroll it


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


def data_uri(png: bytes) -> str:
    """Return a PNG inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def to_html(report: Report) -> str:
    """Return the report as an HTML page, with the panels of its pictures one by one."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # of unfiltered text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (markdown, inline, cell, breakable, data_uri):
        environment.filters[function.__name__] = function
    environment.tests["short"] = short
    return environment.get_template(PAGE).render(report=report)
