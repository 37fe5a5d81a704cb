"""
Copy the pages that mkdocs.yml names to build/pages, with the files that they link to: `make site`.

python docs/stage_site.py                                     # links to code and recipes lead to copies
python docs/stage_site.py https://github.com/OWNER/trl-prorl  # they lead to the repository
"""

import json
import re
import shutil
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
QUICKSTART = "docs/quickstart.md"  # made of the notebook
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def navigation() -> list[str]:
    """Return the pages of mkdocs.yml in their order."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"^ +- (\S+\.md)$", nav, re.MULTILINE)


def notebook_text(path: Path) -> str:
    """Return a notebook as a page: its text, its code and its outputs."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
            if "image/png" in data:
                parts.append(
                    f'<img alt="Output of the cell above" src="data:image/png;base64,{data["image/png"].strip()}">'
                )
            elif "text/html" in data:
                parts.append(data["text/html"])
            else:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def copy(path: Path) -> None:
    target = PAGES / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)


def staged_link(page: Path, link: str, pages: list[str], repository: str) -> str:
    """Return where a relative link of a page leads on the site."""
    path = (page.parent / link).resolve()
    name = path.relative_to(ROOT).as_posix()
    if path.with_suffix(".md") == ROOT / QUICKSTART:
        return link.replace(".ipynb", ".md")
    if name in pages:
        return link
    if repository and path.suffix != ".png":
        return f"{repository}/{'tree' if path.is_dir() else 'blob'}/main/{name}"
    copy(path)
    return link


def stage(name: str, pages: list[str], repository: str) -> None:
    """Write one page."""
    source = ROOT / name
    if name == QUICKSTART:
        text = notebook_text(source.with_suffix(".ipynb"))
    else:
        text = source.read_text()
    text = MATH.sub(r"$$\n\1$$", text)  # GitHub's form of a formula
    text = LINK.sub(lambda match: staged_link(source, match[1], pages, repository), text)
    target = PAGES / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def main(argv: list[str] | None = None) -> int:
    repository = "".join(sys.argv[1:] if argv is None else argv).rstrip("/")
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = navigation()
    for name in pages:
        stage(name, pages, repository)
    return 0


if __name__ == "__main__":
    sys.exit(main())
