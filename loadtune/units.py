"""Numbers to text, nowhere else, where None is "not measured" and shown as a dash; and texts from elsewhere."""

import re

MISSING = "–"

MOST_TEXT = 2000
"""Characters of a text that comes from elsewhere, such as an exception's; a log has it whole."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text with its control characters written out: a terminal obeys them."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def cut(text: str) -> str:
    """At most `MOST_TEXT` characters: the beginning and the end."""
    half = MOST_TEXT // 2
    return text if len(text) <= MOST_TEXT else f"{text[:half]} […] {text[-half:]}"


def bytes_text(count: float | None) -> str:
    """Bytes in binary units with three significant figures: ``1.50 GiB``."""
    if count is None:
        return MISSING
    size, power = float(count), 0
    while abs(size) >= 1024:
        size, power = size / 1024, power + 1
    return f"{_figures(size)} {'KMGTPE'[power - 1]}iB" if power else f"{size:.0f} B"


def count_text(count: int) -> str:
    """How many, with three significant figures: ``512``, ``25.6 M``."""
    number, power = float(count), 0
    while number >= 999.5:
        number, power = number / 1000, power + 1
    return f"{_figures(number)} {'kMGT'[power - 1]}" if power else f"{number:.0f}"


def counted(number: float, noun: str) -> str:
    """So many of them: ``1 trial``, ``12 trials``, ``2 classes``, ``1,200 samples``."""
    plural = noun if number == 1 else f"{noun}es" if noun.endswith(("s", "ch", "x")) else f"{noun}s"
    return f"{number:,.0f} {plural}"


def rate_text(samples_per_s: float | None) -> str:
    """Throughput: ``3,412 samples/s``; below 100 with one or two decimals."""
    return MISSING if samples_per_s is None else f"{number_text(samples_per_s)} samples/s"


def number_text(value: float | None) -> str:
    """A figure whose unit stands elsewhere: ``3,412``, ``27.3``."""
    if value is None:
        return MISSING
    return _figures(value) if value < 100 else f"{value:,.0f}"


def percent_text(fraction: float | None, decimals: int = 0) -> str:
    """A fraction as whole per cent, or finer: ``43%``, ``1.3%``."""
    return MISSING if fraction is None else f"{fraction * 100:.{decimals}f}%"


def seconds_text(seconds: float | None) -> str:
    """``3.1 ms``, ``0.31 s``, ``12 s``, ``3 min 05 s``, ``86 h 55 min``."""
    if seconds is None:
        return MISSING
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def ratio_text(ratio: float | None) -> str:
    """A speed-up: ``2.31×``, ``14.9×``."""
    return MISSING if ratio is None else f"{number_text(ratio)}×"


def _figures(value: float) -> str:
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
