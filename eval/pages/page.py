"""A report as a list of sections, rendered as one self-contained HTML page. All text in it is plain, and escaped."""

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trl_prorl.eval.pages.plotting import Panel
from trl_prorl.eval.pages.table import Table
from trl_prorl.text import visible


TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html.jinja"


@dataclass(frozen=True)
class Section:
    """Panels, a text below them, tables and lines under a heading; folded in the page unless the section is `open`."""

    title: str
    panels: list[Panel] = ()
    text: str = ""
    tables: list[Table] = ()
    lines: list[str] = ()
    open: bool = False

    @property
    def anchor(self) -> str:
        """The heading as an anchor, of ASCII letters and digits only."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def data_uri(png: bytes) -> str:
    """Return a PNG inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def to_html(title: str, lead: list[str], sections: list[Section]) -> str:
    """Return the report as an HTML page, with paragraphs before the first section."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = data_uri
    return environment.get_template(PAGE).render(title=title, lead=lead, sections=sections)
