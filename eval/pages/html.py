"""A report as one HTML page that needs nothing beside it: no network, no script, no other file."""

import base64
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from trl_prorl.eval.pages.curves import Panel
from trl_prorl.eval.pages.document import Report
from trl_prorl.text import visible


TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html.jinja"
LONGEST_SHORT_CELL = 24
UNFOLDED = 3  # sections

# Emphasis and code alone: whatever a run is called, its name makes no link, no picture and no HTML.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(["image", "link", "autolink", "entity"])
_INTERVAL = re.compile(r" (\[[^\]<]*\])(?=$| )")


def inline(text: str) -> Markup:
    """Markdown of one line (emphasis and code) as HTML; everything else is escaped."""
    return Markup(_MARKDOWN.renderInline(visible(text)))


def cell(text: str) -> Markup:
    """A table cell; an interval, outside code, goes onto a line of its own, in smaller type."""
    html = inline(text)
    return html if "`" in text else Markup(_INTERVAL.sub(r' <span class="interval">\1</span>', str(html)))


def short(text: str) -> bool:
    """Whether a cell, its interval aside, should stay on one line."""
    return len(_INTERVAL.sub("", text)) <= LONGEST_SHORT_CELL


def breakable(html: Markup) -> Markup:
    """Let names of runs break where a person would break them."""
    return Markup(re.sub(r"([_/])(?![^<]*>)", r"\1<wbr>", str(html)))


def data_uri(panel: Panel) -> str:
    """The panel as a PNG inside the page."""
    return f"data:image/png;base64,{base64.b64encode(panel.png).decode()}"


def to_html(report: Report) -> str:
    """
    The report as an HTML page.

    Args:
        report ([`Report`]): As [`~eval.pages.document.to_markdown`] takes it; pictures are drawn panel by panel.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": inline, "cell": cell, "breakable": breakable, "data_uri": data_uri}
    environment.tests |= {
        name: lambda block, name=name: type(block).__name__ == name
        for name in ("Text", "Bullets", "Code", "Picture", "Table")
    }
    environment.tests["short"] = short
    return environment.get_template(PAGE).render(report=report, unfolded=UNFOLDED)
