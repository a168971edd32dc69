"""What reaches a terminal of any width and any locale."""

import io

import pytest
from page_rig import explained, golden

import loadtune
from loadtune.report.comparison import view as view_of
from loadtune.report.tables import View
from loadtune.report.text import view_text
from loadtune.terminal import show


def shown(monkeypatch: pytest.MonkeyPatch, width: int) -> tuple[View, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream, view = io.StringIO(), view_of(loadtune.compare(golden(), explained()))
    show(view_text(view), stream)
    return view, stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 72, 80, 200])
def test_no_word_and_no_figure_is_cut_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    view, text = shown(monkeypatch, width)
    assert "…" not in text
    assert max(map(len, text.split("\n"))) <= width
    words = [word for table in view.tables for row in table.rows for cell in row for word in cell.split()]
    assert [word for word in words if word not in text] == []
