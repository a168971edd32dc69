"""Why a GPU's clocks are not at their highest: NVML's bits as words. Pure."""

_WORDS = {
    0x1: "idle",
    0x2: "application clocks set",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "hot (software)",
    0x40: "hot (hardware)",
    0x80: "power brake",
    0x100: "display clocks set",
    0x200: "board limit",
    0x400: "reliability",
}
"""nvmlClocksEventReason… and, of the last two, the older nvmlClocksThrottleReason…, which are the same bits."""


def throttle_words(bits: int) -> tuple[str, ...]:
    """In order of the bits; empty: nothing holds the clocks down. A bit of a newer driver is told by its number."""
    known = [word for bit, word in _WORDS.items() if bits & bit]
    rest = bits & ~sum(_WORDS)
    return (*known, *([f"reason {rest:#x}"] if rest else []))
