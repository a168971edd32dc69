"""The report page in a real browser, from a file: it draws, sorts, filters and copies, and asks for nothing."""

from dataclasses import replace
from itertools import pairwise

import pytest
from browser_rig import CHROMIUM, Browser
from page_rig import NASTY, config, cut_short, explained, golden, measurement, named, with_trials

from loadtune.records.result import Finalist
from loadtune.report.page.write import write_board, write_page
from loadtune.report.store import write_result

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
PHONE_WIDTH = 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """60 trials, some failed, some not run, and a hostile name in every place that takes one."""
    result = named(NASTY, with_trials(60))
    hostile = replace(
        result,
        host=replace(result.host, hostname=NASTY),
        cut_short=NASTY,
        bottleneck=explained().bottleneck,
    )
    return write_page(hostile, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def opened(browser, page):
    """On it, wherever the test before has been."""
    if browser.evaluate("location.href") != page.as_uri():
        browser.open(page)
    return browser


def column(browser, name):
    return browser.evaluate(
        f"""(() => {{
            const table = document.querySelector("table.sortable");
            const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === {name!r});
            return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[place].textContent);
        }})()"""
    )


def click(browser, selector, text=""):
    found = f"[...document.querySelectorAll({selector!r})].find((one) => one.textContent.includes({text!r}))"
    browser.evaluate(f"{found}.click()")


def test_it_draws_everything_asks_for_nothing_and_runs_no_ones_words(browser, page) -> None:
    browser.open(page)
    assert browser.errors == []
    assert {url for url in browser.requests if not url.startswith(("data:", "blob:"))} == {page.as_uri()}
    assert NASTY in browser.evaluate("document.querySelector('h1').textContent")
    plots = "[...document.querySelectorAll('.plot')]"
    assert browser.evaluate(f"{plots}.length") >= 7
    assert browser.evaluate(f"{plots}.every((plot) => plot.querySelector('svg.main-svg'))")


def test_a_heading_sorts_by_value_and_leaves_what_is_missing_at_the_end(opened) -> None:
    for falling in (False, True):
        click(opened, "table.sortable th button", "samples/s")
        shown = column(opened, "samples/s")
        rates = [float(one.partition(" ±")[0].replace(",", "")) for one in shown if one != "–"]
        assert rates == sorted(rates, reverse=falling)
        assert set(shown[len(rates) :]) == {"–"}


def test_the_filter_keeps_rows_that_hold_every_word(opened) -> None:
    typed = """(() => {
        const input = document.querySelector(".filter");
        input.value = "bf16 true";
        input.dispatchEvent(new Event("input", { bubbles: true }));
    })()"""
    opened.evaluate(typed)
    shown = len(column(opened, "trial"))
    assert 0 < shown < 60
    assert set(column(opened, "precision")) == {"bf16"}
    assert opened.evaluate("document.querySelector('.count').textContent") == f"{shown} of 60 shown"


def test_code_is_copied_whole(opened) -> None:
    opened.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    click(opened, ".copy")
    opened.until("document.querySelector('.copy').textContent === 'Copied'")
    assert opened.evaluate("navigator.clipboard.readText()") == opened.evaluate(
        "document.getElementById('code-1').textContent"
    )


def test_code_of_a_change_is_copied_whole(opened) -> None:
    opened.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    click(opened, ".copy[data-of='remedy-1']")
    opened.until("document.querySelector('.copy[data-of=\"remedy-1\"]').textContent === 'Copied'")
    assert opened.evaluate("navigator.clipboard.readText()") == golden().remedies.tried[0].code


def test_dark_and_light_follow_the_system_and_the_switch(browser, page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    found = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        found.append(browser.evaluate(ground))
    click(browser, "#theme")
    browser.until("document.documentElement.dataset.drawn === 'all'")
    assert found[0] != found[1]
    assert browser.evaluate(ground) == found[0]


def test_nothing_is_wider_than_a_phone(browser, page, tmp_path) -> None:
    for one in (page, write_page(cut_short(), tmp_path / "cut.html"), write_page(golden(), tmp_path / "golden.html")):
        browser.open(one, width=PHONE_WIDTH)
        assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE_WIDTH
    assert browser.errors == []


def test_five_finalists_keep_their_names_apart_on_a_phone(browser, tmp_path) -> None:
    configs = [config(1024, 16, pinned=True, precision=name) for name in ("fp32", "fp16", "bf16")]
    configs += [config(2048, 16, pinned=True), config(2048, 12, pinned=True)]
    runs = tuple(measurement(rate) for rate in (900.0, 1000.0))
    result = replace(golden(), finalists=tuple(Finalist(config=one, runs=runs) for one in configs))
    browser.open(write_page(result, tmp_path / "report.html"), width=PHONE_WIDTH)
    boxes = browser.evaluate(
        """[...document.querySelectorAll("#finalists .ytick text")].map((name) => {
            const { left, top, bottom } = name.getBoundingClientRect();
            return { left, top, bottom };
        }).sort((one, other) => one.top - other.top)"""
    )
    assert len(boxes) == len(configs)
    assert all(above["bottom"] <= below["top"] for above, below in pairwise(boxes))
    assert min(box["left"] for box in boxes) >= 0


@pytest.mark.parametrize("width", [PHONE_WIDTH, 1000])
def test_names_of_the_rooflines_lines_stand_apart_and_whole(browser, tmp_path, width: int) -> None:
    browser.open(write_page(explained(), tmp_path / "report.html"), width=width)
    boxes = browser.evaluate(
        """[...document.querySelectorAll("#roofline .annotation-text")].map((label) => {
            const { top, bottom, right } = label.getBoundingClientRect();
            return { top, bottom, right };
        }).sort((one, other) => one.top - other.top)"""
    )
    assert len(boxes) == 4
    assert all(above["bottom"] <= below["top"] for above, below in pairwise(boxes))
    assert max(box["right"] for box in boxes) <= width


def test_the_board_draws_too(browser, tmp_path) -> None:
    write_result(golden(), tmp_path)
    browser.open(write_board([tmp_path], tmp_path / "board.html"))
    assert browser.errors == []
    assert browser.evaluate("document.querySelectorAll('#trend svg.main-svg').length") > 0
