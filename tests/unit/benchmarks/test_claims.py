"""What segments tell beside a plain loop."""

from claims import Pair, ratio_text, table


def test_a_ratio_has_the_interval_of_its_pairs() -> None:
    assert ratio_text([1.25]) == "1.250"
    assert ratio_text([0.5, 2.0]).startswith("1.000 (0.000 to ")
    assert ratio_text([1.1, 1.1, 1.1]) == "1.100 (1.100 to 1.100)"


def test_told_is_the_mean_of_the_segments_before_and_after() -> None:
    pair = Pair("bf16:256:8", before=40.0, after=90.0, loop=80.0, halves=1.0)
    assert pair.told == 60.0
    *_, row, every = table([pair, pair]).splitlines()
    assert row == "| bf16:256:8 | 2 | 60 | 80 | 0.750 (0.750 to 0.750) | 0.75, 0.75 |"
    assert every == "All pairs: 0.750 (0.750 to 0.750)"
