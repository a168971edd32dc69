"""What ``iter(loader)`` gives in place of torch's iterator, and `loadtune.DataLoader`, whose iterators are such."""

import os
import sys
from contextlib import suppress
from itertools import chain
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from loadtune.host.usable import rank
from loadtune.inflight import words
from loadtune.inflight.account import Account, Options, accounts, learnt_file
from loadtune.inflight.readings import join
from loadtune.inflight.tuner import Shared, Tuner
from loadtune.stream import torch_private as private
from loadtune.stream.worker_rows import read_states, write_states


class _Tuned:
    """Delivers what a `SwitchingIterator` does, and shows the tuner each step."""

    def __init__(self, tuner: Tuner, loader: Any) -> None:
        self._tuner = tuner
        self._opened = tuner.open(loader)
        self._inner = self._opened[0]
        tuner.begin(self)

    def __len__(self) -> int:
        return len(self._inner)

    def __next__(self) -> Any:
        tuner = self._tuner
        if self._inner.has_ended or not tuner.guard(tuner.before_step, of=self):  # Lightning keeps an old one
            return next(self._inner)
        try:
            batch = tuner.checked(next(self._inner), self)
        except BaseException as error:
            tuner.guard(tuner.end, isinstance(error, StopIteration), of=self)
            raise
        tuner.guard(tuner.after_step, batch, of=self)
        return batch

    def __getattr__(self, name: str) -> Any:
        """Whoever asks for what torch keeps in its iterator means the workers that deliver."""
        if name in ("_inner", "_tuner"):
            raise AttributeError(name)
        return getattr(self._inner.delivering(), name)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch, as torch asks for where workers are persistent."""
        self._inner._reset(private.LoaderView(loader, self._opened[1].sampler))
        self._tuner.begin(self)

    def _shutdown_workers(self) -> None:
        inner = self.__dict__.get("_inner")
        if inner is not None:
            inner._shutdown_workers()

    def __del__(self) -> None:
        tuner = self.__dict__.get("_tuner")
        if tuner is not None and (watched := tuner.watched()) in (None, self):
            tuner.guard(tuner.end, False, True, of=watched)
        self._shutdown_workers()


def begun_by(tuner: Tuner, loader: Any) -> Any:
    return private.as_torchs(_Tuned, loader.num_workers > 0)(tuner, loader)


def tuned_iterator(loader: Any, frame: FrameType | None, options: Options) -> Any:
    """An iterator that is tuned. None: this loader is left alone, and torch's own is to be used."""
    with Shared.here().lock:
        tuner = _tuner_of(loader, place_of(frame), options)
        if tuner is None or tuner.is_dead:
            return None
        generator = loader.generator
        states, own_state = read_states(), None if generator is None else generator.get_state()
        try:
            private.preload_forkserver(loader.multiprocessing_context)
            return begun_by(tuner, loader)
        except Exception:
            write_states(states)
            if generator is not None:
                generator.set_state(own_state)
            raise


def _tuner_of(loader: Any, place: str, options: Options) -> Tuner | None:
    """The tuner of the loader that began here before, if it is free; so one that is made anew goes on."""
    dataset, number = getattr(loader, "dataset", loader), getattr(loader, "num_workers", 0)
    is_frozen = {type(dataset).__name__, place} & set(options.freeze)
    reason = reason_against(loader) or ("--freeze names it" if is_frozen else None)
    shared = Shared.here()
    shared.ranks = shared.ranks or join()
    here = rank() if shared.ranks is None else shared.ranks.own.rank
    account = Account(name=f"{type(dataset).__name__} at {place}", rank=here, own_workers=number, num_workers=number)
    if reason is not None:
        words.leave_alone(account, reason)
        return None
    size = None
    with suppress(TypeError, AttributeError, NotImplementedError):  # a stream may have a `__len__` and no length
        size = len(dataset)
    key = (type(dataset), size, loader.batch_size, number, place)
    tuners = [each for each in shared.tuners if each.key == key]
    same = (tuner for tuner in tuners if tuner.source() is loader)
    free = (tuner for tuner in tuners if tuner.watched() is None or tuner.watched()._inner.has_ended)
    if (known := next(chain(same, free), None)) is not None:
        return known
    if tuners:
        account.name += f" ({len(tuners) + 1})"
    if options.freeze and not tuners:
        words.say(None, f"{account.name} is tuned: --freeze does not name it")
    learnt = None
    if not options.dry_run:
        learnt = learnt_file(account, options.folder, size, loader.batch_size, loader.prefetch_factor)
    accounts().append(account)
    tuner = Tuner(account, loader, options, learnt, key)
    shared.tuners.append(tuner)
    return tuner


def reason_against(loader: Any) -> str | None:
    """Why a loader is left to torch, as a clause. None: it can be watched."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return f"{type(loader).__module__}.{type(loader).__qualname__} builds torch's iterators itself"
    if isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return "it reads a DataPipe"
    if getattr(type(loader), "state_dict", None) is not getattr(torch.utils.data.DataLoader, "state_dict", None):
        return f"{type(loader).__name__} keeps a state of its own, which counts its workers' batches"
    return None if private.draws_as_torch() else "a library replaced how torch's iterators draw indices"


def place_of(frame: FrameType | None) -> str:
    """``FILE:LINE`` of the user's code that asked for the iterator; of a library's where all is one's."""
    calls = [(each.f_code.co_filename, line) for each, line in walk_stack(frame)]
    calls = [call for call in calls if "/torch/utils/data/" not in call[0] and "/loadtune/inflight/" not in call[0]]
    library = ("<", sys.base_prefix)
    users = [call for call in calls if "site-packages" not in call[0] and not call[0].startswith(library)]
    return next((f"{os.path.basename(path)}:{line}" for path, line in (*users, *calls)), "?")
