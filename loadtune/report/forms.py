"""The answer of a result as text for other programs: what to type into the script that was tuned, the code to paste,
and a form for each program.

Code uses the names ``dataset``, ``model`` and ``loss_fn``, which the user's script defines.
"""

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import PurePath
from shlex import quote
from typing import Any

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, script_at
from loadtune.records.result import Result, TriedRemedy, Winner
from loadtune.records.statistics import gain_text
from loadtune.report.sentences import answer_text, doubt_of, remedy_text, settings_text
from loadtune.report.tables import Section
from loadtune.store import as_json
from loadtune.units import counted

WIDTH = 100
"""Of what is typed into a script or a shell."""
_COMMENT_WIDTH = 78
_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# Learning rates are placeholders from PyTorch's examples; the measured speed does not depend on them.
_OPTIMIZER = {"sgd": ("SGD", "lr=0.1, momentum=0.9"), "adamw": ("AdamW", "lr=0.001")}

_MOST_LINES = 3
"""Of a whole command. Of a longer one the changed arguments are shown."""
_SETTINGS = {
    **dict.fromkeys(("batchsize", "batch", "bs", "b", "trainbatchsize"), "batch_size"),
    **dict.fromkeys(("perdevicetrainbatchsize", "pergputrainbatchsize"), "batch_size"),
    **dict.fromkeys(("numworkers", "workers", "nw", "j", "dataloadernumworkers"), "num_workers"),
}
"""Names of arguments that scripts use, in small letters alone and without what stands before a dot."""


# What to type into a script: its arguments, else the DataLoader line; then precision and the layout of weights


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
    device, dtype = result.device.kind, f"dtype={_AUTOCAST[config.precision]}"
    lines = [f'with torch.autocast("{device}", {dtype}):', "    ...  # your forward pass and loss"]
    if places := result.facts.autocast_places if result.facts else ():
        lines = [f"# {PurePath(each).name}: enable this autocast, with {dtype}" for each in places]
    if config.precision == "fp16":
        update = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
        lines = [f'scaler = torch.amp.GradScaler("{device}")  # before the loop', *lines, update]
    return lines


# Code to paste


def has_own_loader(result: Result) -> bool:
    """Whether the settings are for a ``DataLoader`` of the user's own, which has more arguments than those."""
    spec = result.config.workload
    return spec.loader is not None or "loader" in spec.objects or bool(spec.command)


def loader_code(result: Result, config: TrialConfig) -> str:
    """``loader = DataLoader(…)`` with the measured arguments, shuffled and without a partial last batch.

    Of a loader of the user's own the other arguments stay, such as its sampler.
    """
    chosen = "".join(f"    {name}={value!r},\n" for name, value in result.loader_kwargs(config).items())
    others = "    shuffle=True,\n    drop_last=True,\n"
    if has_own_loader(result):
        others = "    # your other arguments, such as sampler and collate_fn\n"
    return f"from torch.utils.data import DataLoader\n\nloader = DataLoader(\n    dataset,\n{others}{chosen})\n"


def changes_code(result: Result, names: Collection[str] | None = None) -> tuple[Section, ...]:
    """What to paste for each change that was tried, or of these ``names`` alone, in that order, and what it gains."""
    return tuple(
        Section(
            title=f"{remedy_text(each.name)}: {each.title}",
            note=f"{_gain_of(each)}What changes for training: {each.changes}.",
            lines=tuple(each.code.splitlines()),
        )
        for each in (result.remedies.tried if result.remedies and result.best else ())
        if each.code and (names is None or each.name in names)
    )


def _gain_of(each: TriedRemedy) -> str:
    if each.gain is not None:
        return f"Measured alone: {gain_text(each.gain, '99% interval ')}. "
    predicted = "" if each.predicted is None else f"Predicted: {gain_text(each.predicted)}. "
    return predicted + (f"Not measured alone: {each.reason}. " if each.reason else "")


def step_code(result: Result, config: TrialConfig) -> str:
    """Model, optimizer and training step as the recipe was measured, for the device and the batches of a result."""
    return "".join(f"{line}\n" for line in _step(result, config))


def changed_lines(result: Result, config: TrialConfig) -> list[str]:
    """What the recipe changes in a plain training step: lines of `step_code`, those of the loop as if outside of it."""
    plain = _step(result, replace(config, recipe=Recipe()))
    changed = (lines for lines in _step(result, config) if lines not in plain)
    return [line.removeprefix("    ") for lines in changed for line in lines.splitlines()]


def _step(result: Result, config: TrialConfig) -> list[str]:
    """Lines that belong together are one. A function of the user's own has the name of the option that takes it."""
    spec, facts, device, recipe = result.config.workload, result.facts, result.device.kind, config.recipe
    # Of weights and inputs: where only one of them is channels_last, cuDNN converts in every layer.
    layout = ", memory_format=torch.channels_last" if recipe.memory_format == "channels_last" else ""
    lines = ["import torch\n", f'model = model.to("{device}"{layout})']
    if spec.named_optimizer is None:
        lines.append("optimizer = make_optimizer(model.parameters())  # your own function, which may take the model")
    else:
        name, arguments = _OPTIMIZER[spec.named_optimizer]
        made = f"torch.optim.{name}(model.parameters(), {arguments}{', fused=True' * recipe.fused_optimizer})"
        lines += ["# set your own learning rate", f"optimizer = {made}"]
    lines += [f'scaler = torch.amp.GradScaler("{device}")'] if config.precision == "fp16" else []
    batch, loss = "inputs, targets", "loss_fn(model(inputs), targets)"
    to = f'"{device}"{", non_blocking=True" if config.loader.pin_memory else ""}'
    body = [f"inputs = inputs.to({to}{layout})", f"targets = targets.to({to})"]
    if facts is not None and (facts.own_batches or facts.batch_is_mapping):
        batch, loss = "batch", "loss_fn(model, batch)" if facts.own_batches else "model(**batch).loss"
        body = ["# move the tensors of the batch to the device"]
    loop = f"for {batch} in loader:"
    if spec.accumulate > 1:
        loop = f"for number, {batch if batch == 'batch' else f'({batch})'} in enumerate(loader, start=1):"
    body.append(f"loss = {loss}")
    if config.precision != "fp32":
        body[-1:] = [f'with torch.autocast("{device}", dtype={_AUTOCAST[config.precision]}):', f"    loss = {loss}"]
    body += _update(config.precision == "fp16", spec.accumulate)
    return [*lines, f"\n{loop}", *(textwrap.indent(line, "    ") for line in body)]


def _update(is_scaled: bool, accumulate: int) -> list[str]:
    loss, clear = "loss" if accumulate == 1 else f"loss / {accumulate}", "optimizer.zero_grad(set_to_none=True)"
    backward, update = f"{loss if accumulate == 1 else f'({loss})'}.backward()", ["optimizer.step()"]
    if is_scaled:
        backward, update = f"scaler.scale({loss}).backward()", ["scaler.step(optimizer)", "scaler.update()"]
    if accumulate == 1:
        return [clear, backward, *update]
    return [backward, "\n    ".join([f"if number % {accumulate} == 0:", *update, clear])]


# Forms


def _recipe(result: Result, winner: Winner) -> dict[str, Any]:
    """By name. Empty: the user's script decides. Of a script only the precision was chosen."""
    if winner.config.precision == "own":
        return {}
    return {"precision": winner.config.precision} if result.config.workload.command else asdict(winner.config.recipe)


def _provenance(result: Result, winner: Winner) -> str:
    cores = counted(result.host.num_usable_cores, "usable core")
    how = "Confirmed" if doubt_of(result, winner) is None else "Measured, but not confirmed,"
    return (
        f"{answer_text(result, winner)} {how} by loadtune {result.loadtune_version} in training of"
        f" {result.config.workload.title} on {result.device.name}, {cores}, torch {result.host.torch or 'not known'}."
        f" Run of {result.created}."
    )


def _assignment(name: str, values: Mapping[str, object]) -> str:
    """``NAME = {…}``, one entry per line."""
    return f"{name} = {{\n{''.join(f'    {key!r}: {value!r},{chr(10)}' for key, value in values.items())}}}\n"


def _script(result: Result, winner: Winner, said: Sequence[str], *parts: str) -> str:
    """Parts of Python below comments: where the answer comes from, how to use it. Names may hold line breaks."""
    sentences = (" ".join(each.split()) for each in (_provenance(result, winner), *said))
    comment = "".join(f"# {line}\n" for each in sentences for line in textwrap.wrap(each, _COMMENT_WIDTH))
    return "\n".join([comment, *parts])


def python(result: Result, winner: Winner) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    others = "…" if has_own_loader(result) else "shuffle=True, drop_last=True"
    use = f"Use: DataLoader(dataset, {others}, **LOADER_KWARGS)."
    parts = [_assignment("LOADER_KWARGS", result.loader_kwargs(winner.config))]
    if recipe := _recipe(result, winner):
        use += " Train with RECIPE too: the throughput was measured with both."
        parts.append(_assignment("RECIPE", recipe))
    return _script(result, winner, [use], *parts)


def pytorch(result: Result, winner: Winner) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script; so is what
    to type into a script that was tuned as a command.
    """
    if result.config.workload.command:
        lines = "\n".join(script_lines(result, winner.config)).splitlines() or ["Nothing: it trains so as it is."]
        return _script(result, winner, ["To keep it:"], "".join(f"# {line}\n" for line in lines))
    code = [loader_code(result, winner.config), step_code(result, winner.config)]
    if winner == result.best and result.remedies is not None and (kept := result.remedies.config) is not None:
        lines = ["What gains on top, in your own code, measured with", f"{settings_text(kept)}:"]
        lines += [line for each in changes_code(result, kept.remedies) for line in ("", each.title, *each.lines)]
        code.append("".join(f"# {line}".rstrip() + "\n" for line in lines))
    return _script(result, winner, [], *code)


def json(result: Result, winner: Winner) -> str:
    """The loader's arguments, the recipe and their throughput. The whole record is ``result.json``."""
    recipe, spec = _recipe(result, winner) or None, result.config.workload
    return as_json(
        {
            "loader": result.loader_kwargs(winner.config),
            "recipe": recipe,
            "optimizer": None if spec.command else recipe and spec.optimizer,
            "samples_per_s": winner.samples_per_s,
            "half_width_fraction": winner.half_width_fraction,
            "workload": spec.title,
            "device": result.device,
            "num_usable_cores": result.host.num_usable_cores,
            "torch": result.host.torch,
            "created": result.created,
            "loadtune_version": result.loadtune_version,
        }
    )


FORMS: Mapping[str, Callable[[Result, Winner], str]] = {"python": python, "pytorch": pytorch, "json": json}
