"""The README's picture is that of the data beside it."""

from pictures import IMAGES, recording


def test_a_picture_is_that_of_its_data() -> None:
    drawn = recording((IMAGES / "exec.jsonl").read_text("utf-8"))
    assert (IMAGES / "exec.svg").read_text("utf-8") == drawn
