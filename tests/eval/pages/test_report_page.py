"""The HTML page, read as a file and opened in a real browser."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import pytest
from PIL import Image

from trl_prorl.eval import report
from trl_prorl.eval.pages import document
from trl_prorl.eval.samples.store import SAMPLES_FOLDER, SampleStore
from trl_prorl.variants import DIFFERENT_OBJECTIVE


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
FLAGS += "--disable-sync"
PATIENCE = 300_000  # milliseconds; a busy machine is no failure
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 900}
HOSTILE = "A <b>&amp; 'x' [y](http://z)"


def point(step, value):
    correct = [round(8 * value) - 1, round(8 * value) + 1] * 8
    return {"step": step, "truncated": 0.0, "mean_tokens": 5.0, "correct": correct} | {
        f"{kind}@{k}": value if kind == "pass" else [value - 0.05, value + 0.05]
        for k in (1, 4, 8)
        for kind in ("pass", "interval")
    }


PROMPTS = [f"p{place}" for place in range(16)]
SHOWN = "`a` **b** | <i>c</i> [1, 2] d"


def store_samples(folder, side, counts):
    """The samples behind a side of `passk.json`, as `eval.passk` keeps them; the first of each prompt is right."""
    for temperature in (0.0, 1.0):
        rows = [
            {
                "prompt_id": name,
                "sample": n,
                "prompt": f"ask {name}",
                "correct": n < right,
                "completion": f"{side} {SHOWN} {temperature}",
            }
            for name, right in zip(PROMPTS, counts, strict=True)
            for n in range(8)
        ]
        SampleStore(folder / SAMPLES_FOLDER, side, {"temperature": temperature}).add(rows)


@pytest.fixture(scope="module")
def page(tmp_path_factory, run_writer, make_rows, passk_result):
    """The page of a study with everything in it: seeds, resets, checkpoints, other tasks, drift, and gaps."""
    root = tmp_path_factory.mktemp("study")
    resets = {"A": range(10, 60, 10), "C": range(4, 60, 4)}
    drift = {"points": [{"step": step, "kl_to_base": step / 100, "entropy": 0.6} for step in (20, 40)]}
    sides = {"base": {"correct": [1, 2, 3, 4]}, "trained": {"correct": [1, 1, 3, 4]}}
    evaluated = {
        "prompt_ids": PROMPTS,
        "checkpoints": [point(step, 0.2 + step / 200) for step in (20, 40, 60)],
        "greedy": {side: {"accuracy": 0.5} for side in ("base", "trained")},
        "by": [
            {"task": "add", "level": level, "prompts": 16, "base": point(0, 0.2), "trained": point(0, 0.5)}
            for level in (1, 2)
        ],
        "others": {"parity@2": {"task": "parity", "level": 2, "prompts": 4, "n": 8, **sides}},
    }
    row = {
        "kl_ref": lambda step: step % 10 / 100,
        "kl_old": 1e-4,
        "entropy": 0.7,
        "time_rollout": 0.3,
        "grad_norm": lambda step: 1 + step % 7,
        "tokens_generated": 50,
        "tokens_per_second": 1000.0,
    }
    for variant, solved in (("control", 3), ("A", 6), ("B", 5), ("C", 7)):
        of_b = variant == "B"
        row |= {"ref_forward_calls": 0 if of_b else 1, "time_ref": 0.0 if of_b else 0.1}
        for seed in (0, 1):
            row["reward"] = lambda step, seed=seed: 0.2 + 0.01 * step + 0.02 * seed
            began = 1000.0 * len(list(root.glob("*_seed*")))  # one run after the other
            row["time_ended"] = lambda step, began=began: began + 2 * step
            rows = make_rows(60, **row, time_step=1.0 - 0.1 * of_b + 0.01 * seed)
            counts = {"base": [1, 3] * 8, "trained": [solved, solved + 1] * 8}
            events = [{"event": "reset", "step_applied": step} for step in resets.get(variant, ())]
            files = {"events": events, "passk": passk_result(**counts, **evaluated), "drift": drift}
            keys = {"env": {"seed": seed}, "config": {"seed": seed}}
            run = run_writer(root, f"{variant}_seed{seed}", variant, rows, **files, **keys)
            for side in counts:
                store_samples(run, side, counts[side])
    run_writer(root, HOSTILE.replace("/", "|"), "A", make_rows(3), events=None, env={"seed": 7}, config={"beta": 0.5})
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
    inside, outside = ([link for link in links if link.startswith("#") is within] for within in (True, False))
    assert not parsed.problems
    assert len(set(names)) == len(names)
    assert {link[1:] for link in inside} <= set(names)
    assert all(link.startswith("data:") for link in outside)
    tags = [tag for tag, _ in parsed.tags]
    assert not {"script", "iframe", "object", "embed"} & set(tags)
    assert not re.findall(r"url\(|@import", source)
    assert not re.findall(r"\b(?:None|nan|NaN|inf|undefined)\b", " ".join(parsed.text))
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    for image in images:
        encoded = image["src"].removeprefix("data:image/png;base64,")
        Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))).load()
        assert image["alt"]
    assert len(images) >= 10
    assert len(inside) == tags.count("h2") >= 13
    # Whatever a run is called, it is shown, not interpreted: in its row of two tables.
    assert "".join(parsed.text).count(HOSTILE.replace("/", "|")) >= 2


def test_page_says_what_the_markdown_says(page):
    """Every number of report.md stands in the page, in the same order."""
    markdown = page.with_name("report.md").read_text()
    said = " ".join(Page(page.read_text()).text)
    numbers = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?")
    table_rows = [line for line in markdown.splitlines() if line.startswith("| ") and "---" not in line]
    place = 0
    expected = [number for row in table_rows for number in numbers.findall(row)]
    assert len(expected) > 300
    stream = numbers.findall(said)
    for number in expected:
        assert number in stream[place:], number
        place += stream[place:].index(number) + 1
    assert said.count(DIFFERENT_OBJECTIVE) == markdown.count(DIFFERENT_OBJECTIVE) == 1
    for file in re.findall(r"\]\((\S+\.png)\)", markdown):
        Image.open(page.with_name(file)).load()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b** `c_d`", "a <strong>b</strong> <code>c_d</code>"),
        ("<script>&amp;", "&lt;script&gt;&amp;amp;"),
        ("![x](http://y/z.png) [x](http://y)", "![x](http://y/z.png) [x](http://y)"),
    ],
)
def test_inline_markdown(text, shown):
    assert str(document.inline(text)) == shown


@pytest.fixture
def tab(browser, page):
    """A function: the page opened, with the given settings."""
    opened = []

    def open_page(**settings):
        opened.append(browser.new_page(**settings))
        opened[-1].set_default_timeout(PATIENCE)
        opened[-1].goto(page.as_uri())
        return opened[-1]

    yield open_page
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def browser():
    """The Chromium of the machine; Playwright drives it and brings none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with playwright.sync_playwright() as driver:
        # A fresh profile each time, --headless=new: Playwright's own defaults.
        started = driver.chromium.launch(executable_path=executable, args=FLAGS.split(), timeout=PATIENCE)
        yield started
        started.close()


@pytest.mark.parametrize("viewport, scheme", [(PHONE, "light"), (DESKTOP, "dark")], ids=["phone", "desktop"])
def test_in_a_browser(browser, page, viewport, scheme):
    """As a reader would open it, with what is folded: no missing picture, no sideways scrolling, no error."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
    problems = []
    asked = []
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri(), wait_until="load")
    for fold in tab.locator("summary").all():
        fold.click()
    problems += tab.evaluate("[...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.alt)")
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not problems
    assert not tab.evaluate(wide)
    assert page.as_uri() in asked
    assert {url[:5] for url in asked if url != page.as_uri()} <= {"data:"}
    context.close()


def test_contents_lead_there(tab):
    """Following every link of the contents brings its heading onto the screen, below the bar that stays."""
    tab = tab(viewport=PHONE)
    links = tab.locator("nav a")
    for place in range(links.count()):
        links.nth(place).click()
        heading = tab.locator(links.nth(place).get_attribute("href"))
        top = heading.bounding_box()["y"]
        bar = tab.locator("nav").bounding_box()
        assert bar["y"] + bar["height"] - 1 <= top < PHONE["height"]


def test_the_first_screen_has_the_verdict_and_a_link_opens_its_section(tab):
    tab = tab(viewport=PHONE)
    verdict = tab.locator("#verdict + p")
    assert verdict.inner_text().startswith("C has the highest held-out pass@1, 0.938 (base 0.250)")
    assert verdict.bounding_box()["y"] + verdict.bounding_box()["height"] < PHONE["height"]
    assert not tab.locator("#caveats").is_visible()
    tab.locator("nav a", has_text="Caveats").click()
    assert tab.locator("#caveats").is_visible()


def test_completions_stand_side_by_side_as_they_are(tab):
    """Six prompts of the best arm's first run, evenly spaced; of its two stores the one of this temperature."""
    tab = tab(viewport=DESKTOP)
    rows = tab.locator("section[aria-label^=Completions] tbody tr").all_inner_texts()
    text = f"{SHOWN} 1.0"
    assert [row.split("\t") for row in rows] == [
        [f"ask p{place}", f"✓ base {text}", f"✓ trained {text}"] for place in (0, 3, 6, 9, 12, 15)
    ]
