"""The HTML page, read as a file and opened in a real browser."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from eval import report
from eval.pages import document
from eval.samples.store import SAMPLES_FOLDER, SampleStore
from trl_prorl.variants import DIFFERENT_OBJECTIVE


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
FLAGS += "--disable-sync"
PATIENCE = 300_000  # milliseconds; a busy machine is no failure
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
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
            {"prompt_id": name, "sample": n, "prompt": f"ask {name}", "correct": n < right}
            | {"completion": f"{side} {SHOWN} {temperature}"}
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
    row = {"kl_ref": lambda step: step % 10 / 100, "kl_old": 1e-4, "entropy": 0.7, "time_rollout": 0.3}
    row |= {"grad_norm": lambda step: 1 + step % 7, "tokens_generated": 50, "tokens_per_second": 1000.0}
    for variant, solved in (("control", 3), ("A", 6), ("B", 5), ("C", 7)):
        of_b = variant == "B"
        row |= {"ref_forward_calls": 0 if of_b else 1, "time_ref": 0.0 if of_b else 0.1}
        for seed in (0, 1):
            row["reward"] = lambda step, seed=seed: 0.2 + 0.01 * step + 0.02 * seed
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
    """The links and the text of a page."""

    VOID = {"meta", "link", "img", "br", "wbr", "hr"}

    def __init__(self, source: str):
        super().__init__()
        self.ids, self.links, self.images, self.text, self.tags, self.open = [], [], [], [], [], []
        self.problems = []
        self.feed(source)
        self.close()
        if self.open:
            self.problems.append(f"never closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "img":
            self.images.append(attributes)
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes what is not open")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text.append(data)


def problems_in_source(source: str) -> list[str]:
    """Faults of a page that should need nothing beside it."""
    page = Page(source)
    problems = list(page.problems)
    for link in page.links:
        if link.startswith("#"):
            if link[1:] not in page.ids:
                problems.append(f"no target {link}")
        elif not link.startswith("data:"):
            problems.append(f"outside link {link[:80]}")
    problems += [f"two targets #{name}" for name in set(page.ids) if page.ids.count(name) > 1]
    for image in page.images:
        if not image.get("alt"):
            problems.append("picture without alt")
        try:
            encoded = image["src"].removeprefix("data:image/png;base64,")
            Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))).load()
        except Exception as error:
            problems.append(f"picture does not open: {error}")
    text = " ".join(page.text)
    problems += [f"says {word}" for word in re.findall(r"\b(?:None|nan|NaN|inf|undefined)\b", text)]
    problems += [f"tag {tag}" for tag in page.tags if tag in ("script", "iframe", "object", "embed")]
    problems += [f"css loads {url}" for url in re.findall(r"url\(|@import", source)]
    return problems


def test_source_is_whole(page):
    source = page.read_text()
    assert problems_in_source(source) == []
    parsed = Page(source)
    # The verdict, 3 curves, 2 checkpoints, 1 of pass@k, 1 of cost.
    assert len(parsed.images) == 1 + 3 + 2 + 1 + 1
    assert len([link for link in parsed.links if link.startswith("#")]) == parsed.tags.count("h2") >= 13
    assert len(source) < 5e6


def test_names_are_text(page):
    """Whatever a run is called, it is shown, not interpreted."""
    parsed = Page(page.read_text())
    name = HOSTILE.replace("/", "|")
    # In its row of two tables, which have no code around it.
    assert "".join(parsed.text).count(name) >= 2
    assert not any("z" in link for link in parsed.links if not link.startswith(("data:", "#")))


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


def test_matrix_is_grouped_and_explained(page):
    said = " ".join(Page(page.read_text()).text)
    first = said.index("Result matrix", said.index("Contents") if "Contents" in said else 0)
    for group in ("Performance, held-out", "Stability", "Cost", "What the columns mean"):
        assert said.index(group) > first
    assert "largest drop : the furthest" in re.sub(r"\s+", " ", said)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b** `c`", "a <strong>b</strong> <code>c</code>"),
        ("<script>", "&lt;script&gt;"),
        ("![x](http://y/z.png)", "![x](http://y/z.png)"),
        ("[x](http://y)", "[x](http://y)"),
        ("&amp;", "&amp;amp;"),
        ("run_a_b", "run_a_b"),
    ],
)
def test_inline_markdown(text, shown):
    rendered = str(document.inline(text))
    assert rendered == shown


def test_interval_goes_below_its_value():
    assert document.cell("0.5 [0.4, 0.6]") == '0.5 <span class="interval">[0.4, 0.6]</span>'
    assert document.short("0.232 → 0.656 [0.615, 0.694]")
    assert not document.short("KL to pi_old (a different objective)")


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (lambda s: s.replace('id="caveats"', 'id="caveat"'), "no target #caveats"),
        (lambda s: s.replace("data:image/png;base64,iVBOR", "data:image/png;base64,AAAA", 1), "does not open"),
        (lambda s: s.replace("data:image/png;base64,", "https://x.org/", 1), "outside link"),
        (lambda s: s.replace(' alt="', ' title="', 1), "without alt"),
        (lambda s: s.replace("0 of 2", "nan", 1), "says nan"),
        (lambda s: s.replace("</table>", "", 1), "closes what is not open"),
    ],
)
def test_the_check_of_the_source_finds(page, broken, found):
    assert any(found in problem for problem in problems_in_source(broken(page.read_text())))


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


LOOK = """() => ({
    pictures: [...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.alt),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
})"""


def problems_in_browser(browser, path: Path, viewport: dict, scheme: str = "light") -> list[str]:
    """Open a page as a reader would and look for missing pictures, sideways scrolling, errors; links: the source."""
    problems = []
    context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
    try:
        context.set_default_timeout(PATIENCE)
        tab = context.new_page()
        said, errors, asked = [], [], []
        tab.on("console", lambda message: said.append(message))
        tab.on("pageerror", lambda error: errors.append(error))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri(), wait_until="load")
        for fold in tab.locator("summary").all():
            fold.click()  # what is folded must be in order too
        seen = tab.evaluate(LOOK)
        problems += [f"console: {message.text}" for message in said if message.type == "error"]
        problems += [f"error: {error}" for error in errors]
        problems += [f"asks for {url[:80]}" for url in asked if not url.startswith(("data:", path.as_uri()))]
        problems += [f"missing picture: {alt}" for alt in seen["pictures"]]
        problems += ["scrolls sideways"] if seen["wide"] else []
    finally:
        context.close()
    return problems


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser, page, viewport, scheme):
    assert problems_in_browser(browser, page, viewport, scheme) == []


def test_contents_lead_there(tab):
    """Following every link of the contents brings its heading onto the screen, below the bar that stays."""
    tab = tab(viewport=PHONE)
    links = tab.locator("nav a")
    for place in range(links.count()):
        links.nth(place).click()
        heading = tab.locator(links.nth(place).get_attribute("href"))
        top, bar = heading.bounding_box()["y"], tab.locator("nav").bounding_box()
        assert bar["y"] + bar["height"] - 1 <= top < PHONE["height"]


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_first_screen_shows_the_verdict(tab, viewport):
    verdict = tab(viewport=viewport).locator("#verdict + p")
    said = "C is highest in held-out pass@1, 0.938 (base 0.250), but not told apart from"
    assert verdict.inner_text().startswith(said)
    assert verdict.bounding_box()["y"] + verdict.bounding_box()["height"] < viewport["height"]


def test_what_is_open_fits_and_the_rest_is_folded(tab):
    tab = tab(viewport=DESKTOP)
    tables = "[...document.querySelectorAll('section > .scroll')].map(e => [e.scrollWidth, e.clientWidth])"
    widths = tab.evaluate(tables)
    assert len(widths) == 2 and all(width <= room for width, room in widths)
    opened = "[...document.querySelectorAll('section')].map(e => e.querySelector('.fold')?.open ?? true)"
    assert tab.evaluate(opened) == [True] * 3 + [False] * (len(tab.evaluate(opened)) - 3)
    tab.locator("nav a", has_text="Caveats").click()  # a link opens its section
    assert tab.evaluate(opened).count(True) == 4 and tab.locator("#caveats").is_visible()


def test_completions_stand_side_by_side_as_they_are(tab):
    """Six prompts of the best arm's first run, evenly spaced; of its two stores the one of this temperature."""
    tab = tab(viewport=DESKTOP)
    rows = tab.locator("section[aria-label^=Completions] tbody tr").all_inner_texts()
    text = f"{SHOWN} 1.0"
    assert [row.split("\t") for row in rows] == [
        [f"ask p{place}", f"✓ base {text}", f"✓ trained {text}"] for place in (0, 3, 6, 9, 12, 15)
    ]
    assert "Of C_seed0: the first sample each" in tab.locator("section[aria-label^=Completions]").inner_text()
    assert tab.locator("th[scope=row]", has_text="★").all_inner_texts() == ["C ★"]


def test_pictures_stay_on_white_in_the_dark(tab):
    tab = tab(color_scheme="dark")
    style = "element => getComputedStyle(element).backgroundColor"
    assert tab.locator("body").evaluate(style) == "rgb(20, 24, 29)"
    assert tab.locator("img").first.evaluate(style) == "rgb(255, 255, 255)"


BROKEN = {
    "missing picture": lambda s: re.sub(r'src="data:[^"]*"', 'src="gone.png"', s, count=1),
    "scrolls sideways": lambda s: s.replace("</nav>", '</nav><div style="width: 400px">x</div>'),
    "console: x": lambda s: s.replace("</body>", "<script>console.error('x')</script></body>"),
    "error: ": lambda s: s.replace("</body>", "<script>nowhere()</script></body>"),
    "asks for": lambda s: s.replace("</head>", '<link rel="stylesheet" href="http://127.0.0.1:9/x.css"></head>'),
}
# Two that another fault would hide.
ALONE = [
    {"missing picture": lambda s: s.replace("data:image/png;base64,iVBOR", "data:image/png;base64,AAAA", 1)},
    {"scrolls sideways": lambda s: s.replace(".scroll { overflow: auto;", ".scroll {")},
]


@pytest.mark.parametrize("faults", [BROKEN, *ALONE])
def test_the_check_in_the_browser_finds_all_faults_of_a_page(browser, page, tmp_path, faults):
    source = page.read_text()
    for broken in faults.values():
        changed = broken(source)
        assert changed != source
        source = changed
    (tmp_path / "report.html").write_text(source)
    problems = problems_in_browser(browser, tmp_path / "report.html", PHONE)
    assert [found for found in faults if not any(found in problem for problem in problems)] == []
