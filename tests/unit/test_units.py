"""Numbers as people read them: as many figures as tell two apart, and never wider than a table allows."""

import pytest

from loadtune.units import bytes_text, counted, percent_text, seconds_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counted(1, "class"), "1 class"),
        (counted(1_281_167, "sample"), "1,281,167 samples"),
        (bytes_text(None), "–"),
        (bytes_text(999), "999 B"),
        (bytes_text(int(1.5 * 2**30)), "1.50 GiB"),
        (bytes_text(int(139.24 * 2**30), 4), "139.2 GiB"),
        (percent_text(0.0134, 1), "1.3%"),
        (seconds_text(0.0031), "3.1 ms"),
        (seconds_text(185.0), "3 min 05 s"),
        (seconds_text(3599.6), "1 h 00 min"),
    ],
)
def test_numbers_as_text(text: str, expected: str) -> None:
    assert text == expected
