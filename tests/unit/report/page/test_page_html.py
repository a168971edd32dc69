"""The file itself: whole, alone, and safe whatever names and messages it is given."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from page_rig import NASTY, golden, named, with_trials

from loadtune.errors import ResultError
from loadtune.records.measurement import TrialFailure
from loadtune.report.page import write_board, write_page
from loadtune.store import write_result

BREAKOUT = "</script><script>alert(1)</script><!--\u2028 & <img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def page_of(result, folder):
    return write_page(result, folder / "report.html").read_text(encoding="utf-8")


def test_what_a_user_named_adds_no_element_and_ends_no_script(tmp_path) -> None:
    result = named(NASTY, with_trials(30))
    broken = TrialFailure(kind="crash", phase=BREAKOUT, message=BREAKOUT)
    first = replace(result.trials[0], measurement=None, failure=broken)
    host = replace(result.host, hostname=BREAKOUT)
    probes = tuple(replace(each, failure=each.failure and broken) for each in result.ceilings[0].probes)
    ceilings = (replace(result.ceilings[0], probes=probes), *result.ceilings[1:])
    step = replace(result.steps[0], name=BREAKOUT)
    runs = tuple(replace(run, steps=(step, *result.steps[1:])) for run in result.finalists[0].runs)
    finalists = (replace(result.finalists[0], runs=runs), *result.finalists[1:])
    named_so = replace(result, host=host, ceilings=ceilings, finalists=finalists, notes=(BREAKOUT,), cut_short=BREAKOUT)
    page = page_of(replace(named_so, trials=(first, *result.trials[1:])), tmp_path)
    elements = Elements(page)
    assert len(elements.named("script")) == page.count("</script") == 3
    assert not elements.named("img")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; + resnet50" in page
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    embedded = re.search(r'id="figures">(.*?)</script', page, re.DOTALL)[1]
    assert json.loads(embedded)["roofline-0"]["data"]
    assert "48% &lt;/script&gt;&lt;script&gt;" in page
    assert not set("<>&\u2028") & set(embedded)


def test_the_page_is_one_file_that_may_ask_for_nothing_and_shows_code_as_it_is_to_be_copied(tmp_path) -> None:
    page = page_of(golden(), tmp_path)
    elements = Elements(page)
    policy = next(a["content"] for a in elements.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "'unsafe-eval'" not in policy
    assert not [a for _, a in elements.found if "src" in a or (a.get("href") or "#")[0] != "#"]
    assert page.count("* plotly.js v") == 1
    assert "plotly" not in sys.modules
    block = re.search(r'<pre id="code-1">(.*?)</pre>', page, re.DOTALL)
    assert "\n    num_workers=12,\n" in block[1]


def test_without_plotly_there_is_a_word_on_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ResultError, match="pip install plotly"):
        write_page(golden(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_board_names_what_it_cannot_read(tmp_path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write_result(golden(), tmp_path / "a")
    (tmp_path / "b" / "result.json").write_text("{")
    page = write_board([tmp_path / "a", tmp_path / "b"], tmp_path / "board.html").read_text(encoding="utf-8")
    assert page.count("<tr data-outcome=") == 1
    assert "is damaged" in page
