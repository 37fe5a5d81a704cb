"""The site has every page once. `make site` builds it; this needs no library."""

import importlib.util

from doc_pages import PAGES, ROOT


spec = importlib.util.spec_from_file_location("stage_site", ROOT / "docs" / "stage_site.py")
staging = importlib.util.module_from_spec(spec)
spec.loader.exec_module(staging)


def test_every_page_is_in_the_navigation_and_none_twice():
    pages = {*PAGES, *ROOT.glob("*.md"), *ROOT.glob("study/**/*.md"), *ROOT.glob("tests/*.md")}
    expected = {page.relative_to(ROOT).as_posix() for page in pages} | {staging.QUICKSTART}
    assert sorted(staging.navigation()) == sorted(expected)
