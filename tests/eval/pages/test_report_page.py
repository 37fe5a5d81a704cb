"""The HTML page, read as a file."""

import base64
import io
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE
from trl_prorl.eval import report


HOSTILE = "A <b>&amp; 'x' [y](http:||z) $x_{$"
PROMPTS = [f"p{place}" for place in range(16)]


@pytest.fixture(scope="module")
def page(tmp_path_factory, run_writer, make_rows, passk_result):
    """The page of a study with seeds, resets, checkpoints, another task, drift, and gaps."""
    root = tmp_path_factory.mktemp("study")
    drifted = {"interval": [0.1, 0.5], "token_agreement": 0.9, "base_entropy": 0.7, "entropy": 0.6, "mean_tokens": 5.0}
    point = {"pass@1": 0.4, "interval@1": [0.3, 0.5], "correct": [3, 4] * 8, "truncated": 0.0, "mean_tokens": 5.0}
    evaluated = {
        "k": [1],
        "prompt_ids": PROMPTS,
        "checkpoints": [{"step": step, **point} for step in (20, 40, 60)],
        "others": {"parity@2": passk_result([1, 2, 3, 4], [1, 1, 3, 4])},
    }
    row = {"kl_ref": lambda step: step % 10 / 100, "kl_old": 1e-4, "time_step": 1.0, "time_ref": 0.1}
    row |= {"grad_norm": lambda step: 1 + step % 7, "entropy": 0.7, "tokens_per_second": 1000.0}
    for place, (variant, solved) in enumerate((("control", 3), ("A", 6), ("B", 5), ("C", 7))):
        for seed in (0, 1):
            began = 1000.0 * (2 * place + seed)  # one run after the other
            row["reward"] = lambda step, seed=seed: 0.2 + 0.01 * step + 0.02 * seed
            row["time_ended"] = lambda step, began=began: began + 2 * step
            counts = {"base": [1, 3] * 8, "trained": [solved, solved + 1] * 8}
            run_writer(
                root,
                f"{variant}_seed{seed}",
                variant,
                make_rows(60, **row),
                events=[{"event": "reset", "step_applied": step} for step in (10, 30) if variant in "AC"],
                passk=passk_result(**counts, **evaluated),
                drift={"points": [{**drifted, "step": step, "kl_to_base": step / 100} for step in (20, 40)]},
                env={"seed": seed},
            )
    run_writer(root, HOSTILE, "A", make_rows(3), events=None, env={"seed": 7}, config={"beta": 0.5})
    assert report.main(["--runs", f"{root}/*"]) == 0
    return root / "report.html"


class Page(HTMLParser):
    """The tags and the text of a page, and what is wrong with their nesting."""

    VOID = {"meta", "link", "img", "br", "wbr", "hr"}

    def __init__(self, source: str):
        super().__init__()
        self.tags = []
        self.text = []
        self.open = []
        self.problems = []
        self.feed(source)
        self.close()
        self.problems += [f"never closed: {tag}" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes what is not open")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text.append(data)

    def values(self, *names):
        return [attributes[name] for _, attributes in self.tags for name in names if name in attributes]


def test_the_source_is_whole_and_needs_nothing_beside_it(page):
    source = page.read_text()
    parsed = Page(source)
    names = parsed.values("id")
    links = parsed.values("href", "src")
    assert not parsed.problems
    assert len(set(names)) == len(names)
    assert all(link.startswith("data:") or link.removeprefix("#") in names for link in links)
    assert not {"script", "iframe", "object", "embed"} & {tag for tag, _ in parsed.tags}
    assert not re.findall(r"url\(|@import", source)
    assert not re.findall(r"\b(?:None|nan|NaN|inf|undefined)\b", " ".join(parsed.text))
    pictures = [link for link in links if link.startswith("data:image/png")]
    for picture in pictures:
        Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2], validate=True))).load()
    assert len(pictures) >= 10
    # Whatever a run is called, it is shown, not interpreted: in its row of two tables.
    assert "".join(parsed.text).count(HOSTILE) >= 2


def test_the_page_has_its_sections_and_says_once_that_b_is_another_objective(page):
    text = "".join(Page(page.read_text()).text)
    for title in ("Verdict", "Result matrix", "Curves", "Around a reset", "Pairwise differences", "Run by run"):
        assert title in text
    assert text.count(DIFFERENT_OBJECTIVE) == 1
