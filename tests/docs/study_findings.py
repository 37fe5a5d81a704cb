"""The study's findings, from its tables: made once for all workers, because that takes half a minute."""

import os

import pytest
from doc_pages import ROOT
from filelock import FileLock


def make_findings() -> str:
    """What `python -m study figures` writes to study/pages/findings.md, without its pictures."""
    from study.findings import render_page, reported_blocks  # a second, which tests of other pages need not wait
    from study.hierarchical import draw_weights
    from study.matrix import read_matrix
    from study.tables import read_tables
    from study.tuned import with_choices

    tables = read_tables(ROOT)
    whole = read_matrix(ROOT)
    matrix = with_choices(whole, whole, tables)
    text = render_page(ROOT, matrix, tables, reported_blocks(matrix, tables), drawn=[])
    draw_weights.cache_clear()  # half a gigabyte
    return text


@pytest.fixture(scope="session")
def findings(tmp_path_factory):
    """Return the text of the page of findings."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of this run of pytest, and shared by its workers
    page = folder / "findings.md"
    with FileLock(folder / "findings.lock"):
        if not page.exists():
            page.write_text(make_findings())
    return page.read_text()
