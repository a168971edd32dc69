"""The input of every form: a winner, its result, and a paragraph that says where the figures come from."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadtune.records import TrialConfig, TuningResult, Winner
from loadtune.records.chosen import handed_winner, loader_kwargs
from loadtune.report.export import has_own_loader
from loadtune.report.wording import interval_text, keep_text
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
    def workload(self) -> str:
        return self.result.config.workload.title

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
    def throughput(self) -> str:
        """``4,050/s ± 162/s``; without an interval where nothing ran twice."""
        return interval_text(self.winner.throughput)

    @property
    def efficiency(self) -> str | None:
        """``7.40 samples/J ± 0.10 samples/J``. None: the run looked for throughput."""
        picked_by = self.winner.picked_by
        return interval_text(picked_by) if picked_by.objective == "samples-per-joule" else None

    @property
    def machine(self) -> str:
        host = self.result.host
        cores = counted(host.num_usable_cores, "usable core")
        return f"{self.result.device.name}, {cores}, torch {host.torch or 'not known'}"

    @property
    def provenance(self) -> str:
        why = "" if self.efficiency is None else f" Chosen for {self.efficiency} of the GPU's board, not for speed."
        how = "Measured once, without an interval," if self.winner.measured_once else "Confirmed"
        kept = keep_text(self.result, self.winner)
        said = (
            f"{how} by loadtune {self.result.loadtune_version}: {self.throughput} in training of {self.workload} on"
            f" {self.machine}.{why} Run of {self.result.created}."
        )
        return f"{kept} {said}" if kept else said


def handed(result: TuningResult, *, keep_batch_size: bool = False) -> ExportContext:
    """The winner that may be exported. Raises ResultError where there is none, and warns where it is not confirmed."""
    return ExportContext(result, handed_winner(result, keep_batch_size=keep_batch_size))


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
