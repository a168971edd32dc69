"""What reaches a terminal of any width and any locale."""

import io
from pathlib import Path

import pytest
import typer
from page_rig import explained, golden
from typer.testing import CliRunner

import loadtune
from loadtune.cli import app
from loadtune.report.comparison import view as view_of
from loadtune.report.store import write_result
from loadtune.report.tables import View
from loadtune.report.terminal_answer import terminal_answer
from loadtune.report.text import view_text
from loadtune.terminal import print_whatever_the_locale, show


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


@pytest.mark.parametrize(("encoding", "said"), [("ascii", "2.50x"), ("latin-1", "2.50×"), ("utf-8", "2.50×")])
def test_a_locale_without_our_signs_gets_plainer_ones(encoding: str, said: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_whatever_the_locale(stream)
    typer.echo("\n".join(terminal_answer(golden(), Path("report.html"))), file=stream)
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    assert said in text
    assert "?" not in text


def test_json_is_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(golden(), tmp_path)
    ended = CliRunner(charset="utf-8").invoke(app, ["compare", str(tmp_path), str(tmp_path), "--json"])
    assert ended.stdout_bytes.decode("utf-8").startswith("{\n")
