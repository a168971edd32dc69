"""The report page in a real browser, from a file: it draws, sorts, filters and copies, and asks for nothing."""

from dataclasses import replace
from itertools import product

import pytest
from browser_rig import CHROMIUM, Browser
from page_rig import NASTY, cut_short, explained, golden, named, with_trials

from loadtune.report.page import write_board, write_page
from loadtune.store import write_result

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
DESKTOP_AND_PHONE = 1200, 390


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
        result, host=replace(result.host, hostname=NASTY), cut_short=NASTY, bottleneck=explained().bottleneck
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
    assert NASTY in browser.evaluate("document.querySelector('.subtitle').textContent")
    plots = "[...document.querySelectorAll('.plot')]"
    assert browser.evaluate(f"{plots}.length") == 4
    assert browser.evaluate(f"{plots}.every((plot) => plot.querySelector('svg.main-svg'))")
    names = "[...document.querySelectorAll('#roofline .annotation-text')].map((name) => name.textContent)"
    assert any("pinning thread" in name for name in browser.evaluate(names))


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
        input.value = "bf16 pinned";
        input.dispatchEvent(new Event("input", { bubbles: true }));
    })()"""
    opened.evaluate(typed)
    shown = len(column(opened, "trial"))
    assert 0 < shown < 60
    assert all("pinned, bf16" in settings for settings in column(opened, "settings"))
    assert opened.evaluate("document.querySelector('.count').textContent") == f"{shown} of 60 shown"


def test_code_is_copied_whole(opened) -> None:
    opened.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    for key in ("code-1", "remedy-1"):
        button = f".copy[data-of='{key}']"
        click(opened, button)
        opened.until(f'document.querySelector("{button}").textContent === "Copied"')
        copied = opened.evaluate("navigator.clipboard.readText()")
        assert copied == opened.evaluate(f"document.getElementById('{key}').textContent")


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


def test_nothing_is_wider_than_the_screen_and_the_board_is_a_small_page(browser, page, tmp_path) -> None:
    write_result(golden(), tmp_path)
    board = write_board([tmp_path], tmp_path / "board.html")
    assert board.stat().st_size < 100_000
    cut, whole = (
        write_page(one, tmp_path / f"{name}.html") for name, one in (("cut", cut_short()), ("golden", golden()))
    )
    for one, width in product((page, cut, whole, board), DESKTOP_AND_PHONE):
        browser.open(one, width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    click(browser, "table.sortable th button", "samples/s")
    assert column(browser, "samples/s") == ["4,050 ± 162"]
    assert browser.errors == []
