"""Batches of the loader on their way to the device: copied as they are needed, or one ahead on a stream of its own."""

import torch

from loadtune.bench.training import Trainer
from loadtune.workload import Batch, tensors_of


class Feed:
    """Given a batch of the loader, returns one to train on: the same, or the one before where copies go ahead."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._stream = torch.cuda.Stream(trainer.device) if trainer.copies_ahead else None  # type: ignore[no-untyped-call]
        self._waiting: tuple[Batch, torch.cuda.Event] | None = None

    def batch(self, loaded: Batch) -> Batch:
        """On the device. With copies ahead the first batch is trained on twice."""
        if self._stream is None:
            return self._trainer.receive(loaded)
        with torch.cuda.stream(self._stream):
            copied = self._trainer.to_device(loaded), self._stream.record_event()
        ready, event = self._waiting or copied
        self._waiting = copied
        current = torch.cuda.current_stream(self._trainer.device)
        current.wait_event(event)
        for tensor in tensors_of(ready):
            tensor.record_stream(current)
        return self._trainer.prepared(ready)
