"""Numbers as people read them: as many figures as tell two apart, and never wider than a table allows."""

import pytest

from loadtune.units import bytes_text, counted, departure_text, percent_text, seconds_text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "trial", "0 trials"),
        (1, "trial", "1 trial"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (3, "batch", "3 batches"),
        (1, "more line", "1 more line"),
        (1_281_167, "sample", "1,281,167 samples"),
        (7.0, "worker", "7 workers"),
    ],
)
def test_so_many_of_them(number: float, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("count", "figures", "text"),
    [
        (None, 3, "–"),
        (999, 3, "999 B"),
        (int(1.5 * 2**30), 3, "1.50 GiB"),
        (int(139.24 * 2**30), 3, "139 GiB"),
        (int(139.24 * 2**30), 4, "139.2 GiB"),
        (1023 * 2**20, 3, "1023 MiB"),
        (2**63, 3, "8.00 EiB"),
    ],
)
def test_bytes(count: int | None, figures: int, text: str) -> None:
    assert bytes_text(count, figures) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "–"),
        (0.013, "+1.3%"),
        (-0.0001, "+0.0%"),
        (-0.25, "-25.0%"),
        (0.99949, "+99.9%"),
        (0.9996, "+100%"),
        (9.99, "+999%"),
        (1e9, ">+999%"),
        (-1e9, "<-999%"),
    ],
)
def test_departures_keep_their_sign_and_six_characters(fraction: float | None, text: str) -> None:
    assert departure_text(fraction) == text


def test_per_cent_is_whole_unless_asked_for_finer() -> None:
    assert (percent_text(0.0134), percent_text(0.0134, 1), percent_text(None)) == ("1%", "1.3%", "–")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0031, "3.1 ms"),
        (0.31, "0.31 s"),
        (3.14, "3.1 s"),
        (12.4, "12 s"),
        (185.0, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (312_942.0, "86 h 55 min"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text
