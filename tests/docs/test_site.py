"""The built site: its signatures, and, in a browser without a network, mathematics, widths and the
explorer."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import chromium
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# what a page's own text shows of TeX; code is code
RAW_TEX = r"""(() => {
  const page = document.querySelector("article").cloneNode(true);
  page.querySelectorAll("pre, code, script, mjx-container").forEach((part) => part.remove());
  return page.textContent.match(/\\[a-zA-Z([]+|\$\$/g) ?? [];
})()"""
CUT = """[...document.querySelectorAll("pre")]
  .filter((pre) => pre.scrollWidth > pre.clientWidth + 1).map((pre) => pre.textContent)"""
# what a page of the API shows of formulas as code, and formulas that MathJax cannot read
CODED = """[...document.querySelectorAll("article pre")].map((pre) => pre.textContent)
  .filter((text) => /[ΠΩ∇‖⟨Σ]/.test(text))"""
UNREAD = """[...document.querySelectorAll("[data-mml-node=merror]")]
  .map((error) => error.textContent)"""
WEIGHTS = 'document.querySelector(".explorer-answer").textContent'
DOT = "#regmax-explorer [data-id=scores] .explorer-dot:nth-of-type(4)"  # the third score
SCORE = f'Number(document.querySelector("{DOT}").getAttribute("aria-valuenow"))'


def built() -> Path | None:
    """What ``make docs`` made, if nothing that is in it is newer."""
    page = ROOT / "build" / "docs" / "index.html"
    sources = [ROOT / "README.md"]
    for folder in ("docs", "regmax", "plugins"):
        files = (p for p in (ROOT / folder).rglob("*") if p.is_file())
        sources += [p for p in files if p.parent.name != "__pycache__"]
    if page.is_file() and all(p.stat().st_mtime < page.stat().st_mtime for p in sources):
        return page.parent
    return None


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if (folder := built()) is not None:
        return folder
    docs = ("sphinx", "furo", "myst_nb", "ipykernel", "sphinx_copybutton", "sphinx-mathjax-offline")
    for package in docs:
        if find_spec(package) is None:
            pytest.skip(f"needs the extra docs: {package} is not installed")
    folder = tmp_path_factory.mktemp("site")
    # make docs runs the notebooks
    options = ["-W", "-q", "-b", "html", "-D", "nb_execution_mode=off"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def browser(site):
    if chromium.found() is None:
        pytest.skip(f"needs a browser: none of {', '.join(chromium.NAMES)} is installed")
    try:
        browser = chromium.Chromium()
    except (OSError, RuntimeError, TimeoutError) as error:
        pytest.skip(f"the browser does not start: {error}")
    yield browser
    browser.close()


def pages(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if "_modules" not in page.parts)


def test_a_signature_shows_what_one_can_pass(site):
    wrong = {}
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        for name, shown in re.findall(
            r'<dt class="sig[^>]*id="([^"]*)">(.*?)</dt>', text, re.DOTALL
        ):
            plain = html.unescape(re.sub(r"<[^>]+>", "", shown))
            if re.search(r"\(\*args|,,|<factory>|~|[(,]\s*_\w", plain):
                wrong[name] = plain
    assert wrong == {}


def called(code: str) -> list[float]:
    """What the last line of some Python gives."""
    *before, last = code.splitlines()
    names: dict = {}
    exec("\n".join(before), names)
    return eval(last, names).tolist()


def test_every_page_is_complete_without_a_network_and_fits_a_phone(site, browser):
    wrong, wide, formulas = {}, {}, 0
    for page in pages(site):
        browser.resize(1440)
        browser.open(page)
        outside = [url for url in browser.requests if not url.startswith(("file:", "data:"))]
        found = [RAW_TEX, CUT, UNREAD, *([CODED] if page.parent.name == "api" else [])]
        problems = [
            *browser.failures,
            *outside,
            *(part for what in found for part in browser.run(what)),
        ]
        formulas += browser.run("document.querySelectorAll('mjx-container svg').length")
        if problems:
            wrong[page.name] = problems
        browser.resize(390, touch=True)
        width = browser.run("document.documentElement.scrollWidth")
        if width > 390:
            wide[page.name] = width
    assert wrong == {}
    assert wide == {}
    assert formulas > 20


def test_the_first_screen_has_the_picture_the_code_and_the_install_command(site, browser):
    browser.resize(1440, 900)
    browser.open(site / "index.html")
    ends = browser.run(
        """["article img", "article .highlight-python", "article .highlight-sh"]
        .map((part) => document.querySelector(part).getBoundingClientRect().bottom)"""
    )
    assert ends == sorted(ends)
    assert ends[-1] < 900


def test_each_table_and_figure_of_the_experiments_fits_and_has_its_words(site, browser):
    browser.resize(1440)
    browser.open(site / "experiments.html")
    wide = """[...document.querySelectorAll(".table-wrapper")]
        .filter((table) => table.scrollWidth > table.clientWidth + 1).length"""
    bare = """[...document.querySelectorAll("article p > img")]
        .filter((image) => !image.closest("p").nextElementSibling.querySelector("em")).length"""
    assert browser.run(wide) == 0
    assert browser.run(bare) == 0
    assert browser.run("document.querySelectorAll('article p > img').length") == 7


@pytest.mark.parametrize("how", ["mouse", "touch", "keyboard"])
def test_the_explorer_moves_a_score(site, browser, how):
    browser.resize(390 if how == "touch" else 1440, touch=how == "touch")
    browser.open(site / "explorer.html")
    before, weights = browser.run(SCORE), browser.run(WEIGHTS)
    if how == "keyboard":
        browser.run(f'document.querySelector("{DOT}").focus()')
        for _ in range(4):
            browser.press("ArrowUp", 38)
    else:
        browser.drag(DOT, 0, -20, touch=how == "touch")
    browser.settle()
    after = browser.run(SCORE)
    assert after > before + 0.1
    assert browser.run(WEIGHTS) != weights
    assert browser.run("scrollX") == 0
    assert browser.failures == []


def test_the_explorer_shows_each_mapping_its_path_and_three_scores(site, browser):
    browser.resize(1440)
    browser.open(site / "explorer.html")
    lines = 'document.querySelectorAll("[data-id=path] polyline").length'
    assert browser.run(lines) == 6
    browser.run('document.querySelector("[data-id=three]").click()')
    assert browser.run(lines) == 3
    answers = []
    for name in browser.run(
        "[...document.querySelector('[data-id=mapping]').options].map(o => o.value)"
    ):
        browser.run(
            f"""(() => {{ const select = document.querySelector("[data-id=mapping]");
            select.value = {name!r}; select.dispatchEvent(new Event("change")); }})()"""
        )
        answers.append(browser.run(WEIGHTS))
        offered = "pnorm" not in name
        assert browser.run("document.querySelector('[data-for=cap]').hidden") != offered
        bounds = ((1.5, 0.6), (2.5, 0.1)) if offered else ()
        for total, cap in (*bounds, (1.0, 1.0)):
            for key, value in (("total", total), ("cap", cap)):
                browser.run(
                    f"""(() => {{ const slider = document.querySelector("[data-id={key}]");
                    slider.value = {value}; slider.dispatchEvent(new Event("input")); }})()"""
                )
            shown = re.search(r"\((.*?)\)", browser.run(WEIGHTS))[1].split(", ")
            weights = [float(y.strip("<")) for y in shown]
            assert sum(weights) == pytest.approx(total, abs=2e-3)
            code = browser.run("document.querySelector('[data-id=code]').textContent")
            assert ("Simplex(" in code) == (total != 1)
            assert called(code) == pytest.approx(weights, abs=2e-3), code
        for button in range(
            browser.run("document.querySelectorAll('[data-id=over] button').length")
        ):
            browser.run(f"document.querySelectorAll('[data-id=over] button')[{button}].click()")
            assert browser.run(lines) == 3
    assert len(answers) == 12
    triangle = "[data-id=triangle] .explorer-dot"
    before = browser.run(WEIGHTS)
    browser.drag(triangle, 60, 20)
    browser.settle()
    after = browser.run(WEIGHTS)
    assert after != before
    browser.run(f'document.querySelector("{triangle}").focus()')
    browser.press("ArrowLeft", 37)
    browser.settle()
    assert browser.run(WEIGHTS) != after
    before = browser.run("document.querySelector('[data-id=gamma-value]').textContent")
    browser.run("document.querySelector('[data-key=gamma]').click()")
    browser.drag("[data-id=path]", 60, 0)
    browser.settle()
    assert browser.run("document.querySelector('[data-id=gamma-value]').textContent") != before
    assert browser.failures == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_explorer_follows_the_theme(site, browser, theme):
    browser.resize(1440)
    browser.open(site / "explorer.html")
    browser.run(f"document.body.dataset.theme = {theme!r}")
    text, page = (
        browser.run(
            f"""getComputedStyle(document.querySelector({selector!r})).{style}
            .match(/[0-9]+/g).slice(0, 3).reduce((sum, v) => sum + Number(v), 0) / 3"""
        )
        for selector, style in (("[data-id=scores] text", "fill"), ("body", "backgroundColor"))
    )
    assert (text < 60 < 240 < page) if theme == "light" else (page < 40 < 180 < text)
