"""What to type into the user's own script to train with an answer: its arguments, else the DataLoader line; then the
lines of the precision and of the weights' layout.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from shlex import quote
from typing import Any

from loadtune.records.config import LoaderConfig, TrialConfig, script_at
from loadtune.records.result import Result

WIDTH = 100
AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}

_MOST_LINES = 3
"""Of a whole command. Of a longer one the changed arguments are shown."""
_SETTINGS = {
    **dict.fromkeys(("batchsize", "batch", "bs", "b", "trainbatchsize"), "batch_size"),
    **dict.fromkeys(("perdevicetrainbatchsize", "pergputrainbatchsize"), "batch_size"),
    **dict.fromkeys(("numworkers", "workers", "nw", "j", "dataloadernumworkers"), "num_workers"),
}
"""Names of arguments that scripts use, in small letters alone and without what stands before a dot."""


def script_lines(result: Result, config: TrialConfig) -> list[str]:
    """As they are typed, at most `WIDTH` wide. Empty: the script trains so as it is."""
    facts = result.facts
    own = None if facts is None else facts.own_loader
    changed = _changed(own, config.loader)
    if "batch_size" not in result.loader_kwargs(config):  # the user's batch sampler makes the batches
        changed.pop("batch_size", None)
    numbers = dict[str, tuple[int, int]]()
    for name in ("batch_size", "num_workers"):
        if own is not None and name in changed:
            numbers[name] = (getattr(own, name), changed[name])
    lines, said = with_arguments(result.config.workload.command, numbers)
    left = ", ".join(f"{name}={value!r}" for name, value in changed.items() if name not in said)
    if left:
        place = f"  # {facts.loader_place}" if facts is not None and facts.loader_place else ""
        call = f"DataLoader(..., {left})"
        if len(call + place) > WIDTH and place:
            lines, place = [*lines, place.strip()], ""
        lines += textwrap.wrap(call, WIDTH - len(place), subsequent_indent="    ")
        lines[-1] += place
    lines += _precision_lines(result, config)
    if config.recipe.memory_format == "channels_last":
        lines.append("model = model.to(memory_format=torch.channels_last)  # before the loop")
    return lines


def _changed(own: LoaderConfig | None, answer: LoaderConfig) -> dict[str, Any]:
    """Arguments of DataLoader by which the answer differs, also what a script without workers may not give."""
    before = {} if own is None else _given(own)
    return {name: value for name, value in _given(answer).items() if name not in before or before[name] != value}


def _given(loader: LoaderConfig) -> dict[str, Any]:
    """As a script gives them. None: PyTorch's default."""
    usual = {"prefetch_factor": None, "persistent_workers": False, "in_order": True}
    if loader.num_workers:
        usual = {} if loader.prefetch_factor != 2 else {"prefetch_factor": None}
    return asdict(loader) | usual


def with_arguments(command: Sequence[str], numbers: Mapping[str, tuple[int, int]]) -> tuple[list[str], set[str]]:
    """The command's lines with new numbers, and the settings that its arguments hold. ``numbers``: of settings, in use
    and new; an argument counts where it has a known name and the number in use. No lines: no argument does."""
    words, said, changed = list(command), set[str](), list[str]()
    for at in range(script_at(command) + 1, len(words)):
        name, equals, value = words[at].partition("=")
        place, before = at, f"{name}="
        if glued := re.fullmatch(r"(-[a-z])(\d+)", words[at]):
            before, value = glued.groups()
            name = before
        elif not equals and name.startswith("-") and at + 1 < len(words):
            place, before, value = at + 1, "", words[at + 1]
        setting = _SETTINGS.get(re.sub(r"[-+_]", "", name.rpartition(".")[2]).lower(), "")
        if setting in numbers and value == str(numbers[setting][0]):
            words[place] = f"{before}{numbers[setting][1]}"
            said.add(setting)
            changed.append(words[place] if before else f"{name} {words[place]}")
    if not said:
        return [], said
    lines = _wrapped([quote(word) for word in words])
    is_short = len(lines) <= _MOST_LINES and all(map(str.isprintable, words))
    return (lines if is_short else [f"In your command: {' '.join(changed)}"]), said


def _wrapped(words: Sequence[str]) -> list[str]:
    """Lines of one shell command, broken between words."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines


def _precision_lines(result: Result, config: TrialConfig) -> list[str]:
    """Of another precision than the script's own."""
    own = (result.facts and result.facts.own_precision) or "fp32"
    if config.precision in ("own", own):
        return []
    if config.precision == "fp32":
        return [f"# train in fp32: without torch.autocast{' and GradScaler' if own == 'fp16' else ''}"]
    device, dtype = result.device.kind, f"dtype={AUTOCAST[config.precision]}"
    lines = [f'with torch.autocast("{device}", {dtype}):', "    ...  # your forward pass and loss"]
    if places := result.facts.autocast_places if result.facts else ():
        lines = [f"# {PurePath(each).name}: enable this autocast, with {dtype}" for each in places]
    if config.precision == "fp16":
        update = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
        lines = [f'scaler = torch.amp.GradScaler("{device}")  # before the loop', *lines, update]
    return lines
