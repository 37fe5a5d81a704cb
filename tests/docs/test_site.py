"""The site has every page once. `make site` builds it; this needs no library."""

import importlib.util

import pytest
from doc_pages import PAGES, ROOT, links


spec = importlib.util.spec_from_file_location("stage_site", ROOT / "docs" / "stage_site.py")
staging = importlib.util.module_from_spec(spec)
spec.loader.exec_module(staging)


def test_every_page_is_in_the_navigation_and_none_twice():
    pages = {*PAGES, *ROOT.glob("*.md"), *ROOT.glob("study/**/*.md"), *ROOT.glob("tests/*.md")}
    expected = {page.relative_to(ROOT).as_posix() for page in pages} | {staging.QUICKSTART}
    assert sorted(staging.navigation()) == sorted(expected)


@pytest.mark.parametrize("repository", ["", "https://github.com/someone/trl-prorl"])
def test_links_lead_to_staged_files_or_to_the_repository(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "PAGES", tmp_path)
    staging.main([repository])
    found = set()
    for name in staging.navigation():
        page = tmp_path / name
        for link in links(page.read_text()):
            path = link.partition("#")[0]
            if path.startswith(f"{repository}/blob/main/"):
                found.add(path)
                assert (ROOT / path.removeprefix(f"{repository}/blob/main/")).is_file(), (name, link)
            elif path and not path.startswith(("http", "mailto:")):
                assert (page.parent / path).exists(), (name, link)
    assert bool(found) == bool(repository)
