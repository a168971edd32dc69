"""What `conformance.py` puts into the processes that it looks at. Notes go to ``CONFORMANCE_FOLDER``.

``CONFORMANCE_RECORD``: each batch that a loop gets. ``CONFORMANCE_SEED``: switches at random steps, through the tuner's
own `_switch`, so that each goes the way of a real one.
"""

import hashlib
import os
import random
import sys
import time
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakKeyDictionary

CHANCE, READY_S = 0.3, 8.0
"""Of a switch before a step; seconds that are waited for its workers, since epochs of tests are short."""


def note(name, *words):
    with (Path(os.environ["CONFORMANCE_FOLDER"]) / name).open("a") as file:
        file.write(" ".join(" ".join(map(str, words)).split()) + "\n")


class After:
    """Acts once, when a module has been imported, on that module."""

    def __init__(self, name, act):
        self.name, self.act = name, act
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), self.act(module))
        return spec


def digest(batch, kinds):
    """Of texts, and of numbers of these kinds."""
    found, left = hashlib.blake2b(digest_size=6), [batch]
    while left:
        each = left.pop()
        if isinstance(each, dict | list | tuple):
            left += [*each, *each.values()] if isinstance(each, dict) else each
        elif hasattr(each, "dtype") and hasattr(each, "__array__"):
            array = each.detach().cpu().numpy() if hasattr(each, "detach") else each
            found.update(array.tobytes() if array.dtype.kind in kinds else b"")
        elif isinstance(each, str | bytes | int):
            found.update(repr(each).replace(os.getcwd(), "").encode())
    return found.hexdigest()


class Recorded:
    def __next__(self):
        batch = super().__next__()
        note(f"batches-{os.environ.get('RANK', 0)}", digest(batch, "i"), digest(batch, "biufc"))
        return batch


def record(module):
    real = module.DataLoader._get_iterator  # ultralytics calls it itself

    def _get_iterator(self):
        made = real(self)
        # It stays of its class, for toolkits ask for that and for what it keeps.
        made.__class__ = type(type(made).__name__, (Recorded, type(made)), {})
        return made

    # As torch's own code: what begins an iterator has to be the script, which loadtune tells loaders apart by.
    _get_iterator.__code__ = _get_iterator.__code__.replace(co_filename=module.__file__)
    module.DataLoader._get_iterator = _get_iterator


def force(module):
    """The tuner judges nothing any more; it is told to switch."""
    from loadtune.decide.inflight import Action, Reading

    kind, chances = module.Tuner, WeakKeyDictionary()
    before_step, delivering, left = kind.before_step, kind._delivering, kind._left
    reading = Reading(num_workers=1, num_steps=1, total_s=1.0, blocked_s=1.0, step_s=0.0)

    def with_switch(self):
        before_step(self)
        name, iterator = self.account.name, self.iterator
        chance = chances.setdefault(
            self, random.Random(zlib.crc32(f"{os.environ['CONFORMANCE_SEED']} {name}".encode()))
        )
        is_alone = self.is_stream or self.account.state == "left alone"
        if is_alone or not self.num_delivered or iterator.is_switching or chance.random() > CHANCE:
            return
        note("switches", "forced", name)
        self.clocks = self.clocks or self._read_clocks()
        self._note_draws()
        number = chance.choice(sorted({1, 2, 3, 4} - {iterator.num_delivering}))
        if (refusal := self._bound(reading, None).refusal) is not None:
            self._leave(refusal)
        else:
            self._do(
                Action(state=replace(self.state, stage="starting", target=number), do="switch", num_workers=number)
            )
        until_s = time.monotonic() + READY_S
        while iterator.is_switching and time.monotonic() < until_s:
            iterator._advance()
            time.sleep(0.001)

    def with_note(self, number, batch):
        if batch > 0 or number != self.own:
            note("switches", "delivered", self.account.name)
        delivering(self, number, batch)

    def left_with_note(self, reason):
        note("switches", "left", f"{self.account.name}: {reason}")
        left(self, reason)

    kind.before_step, kind._delivering, kind._left = with_switch, with_note, left_with_note
    kind._look = kind._whole_epoch = lambda self, *_: None


def pytest_runtest_logreport(report):
    """At once, so that a test run that hangs has shown something."""
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(crash, "message", "")[:300]
    note("tests", report.nodeid.replace(" ", "_"), report.outcome, reason)


if "CONFORMANCE_RECORD" in os.environ:
    After("torch.utils.data.dataloader", record)
if "CONFORMANCE_SEED" in os.environ:
    After("loadtune.inflight.tuner", force)
