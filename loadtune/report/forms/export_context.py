"""The input of every form: a winner, its result, and a paragraph that says where the figures come from."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadtune.records.answer import loader_kwargs
from loadtune.records.config import TrialConfig
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import has_own_loader
from loadtune.report.sentences import keep_text
from loadtune.report.wording import interval_text
from loadtune.units import counted

_WIDTH = 78


@dataclass(frozen=True, slots=True)
class ExportContext:
    """One winner and its result."""

    result: TuningResult
    winner: Winner

    @property
    def config(self) -> TrialConfig:
        return self.winner.config

    @property
    def loader_kwargs(self) -> dict[str, Any]:
        return loader_kwargs(self.result, self.config)

    @property
    def loader_call(self) -> str:
        """How the exported arguments are used."""
        others = "…" if has_own_loader(self.result) else "shuffle=True, drop_last=True"
        return f"DataLoader(dataset, {others}, **LOADER_KWARGS)"

    @property
    def has_own_step(self) -> bool:
        """Whether the user's training step decides precision, optimizer and all else but the loader."""
        return self.config.precision == "own"

    @property
    def recipe(self) -> dict[str, Any]:
        """By name. Empty: the user's training step decides."""
        return {} if self.has_own_step else asdict(self.config.recipe)

    @property
    def machine(self) -> str:
        host = self.result.host
        cores = counted(host.num_usable_cores, "usable core")
        return f"{self.result.device.name}, {cores}, torch {host.torch or 'not known'}"

    @property
    def provenance(self) -> str:
        rate, found, why = interval_text(self.winner.throughput), self.winner.samples_per_joule, ""
        if found is not None:
            why = f" Chosen for {interval_text(found, 'samples-per-joule')} of the GPU's board, not for speed."
        how = "Measured once, without an interval," if self.winner.measured_once else "Confirmed"
        kept = keep_text(self.result, self.winner)
        said = (
            f"{how} by loadtune {self.result.loadtune_version}: {rate} in training of"
            f" {self.result.config.workload.title} on {self.machine}.{why} Run of {self.result.created}."
        )
        return f"{kept} {said}" if kept else said


def comment(*sentences: str) -> str:
    """Lines that begin with ``# ``, also where the name of a workload holds a line break."""
    lines = [line for sentence in sentences for line in textwrap.wrap(" ".join(sentence.split()), _WIDTH)]
    return "".join(f"# {line}\n" for line in lines)


def assignment(name: str, values: Mapping[str, object]) -> str:
    """``NAME = {…}``, one entry per line."""
    return (
        f"{name} = {{\n"
        + "".join(f"    {_literal(key)}: {_literal(value)},\n" for key, value in values.items())
        + "}\n"
    )


def _literal(value: object) -> str:
    """Python as formatters write it, with double quotes."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value) if isinstance(value, str) else repr(value)
