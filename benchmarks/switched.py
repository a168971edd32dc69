"""A tuner that switches at given batches, so that no clock decides what is tested."""

import time
from typing import ClassVar

from loadtune.inflight.tuner import Tuner


class Switched(Tuner):
    """Decides nothing. The loop waits for the workers of a switch, which get the next batch that is not given out."""

    __module__ = Tuner.__module__
    """As the hook knows loadtune's own."""
    switches: ClassVar[dict[tuple[int, int], int]] = {}
    """(Epoch, batch before which they are asked for), both from 0 → workers."""

    def before_step(self):
        super().before_step()
        number = self.switches.get((self.epoch, self.num_delivered))
        if number is None or self.state.stage == "left alone":
            return
        if (reason := self.trust.reason_against()) is not None:
            self._leave(reason)
        else:
            self.iterator.switch(number)
            while self.iterator.is_switching and self.known != []:  # they load again what was delivered first
                time.sleep(0.005)
                self.iterator._advance()

    def _look(self):
        """Nobody does."""
