"""Between the user's loop and the session that asks for its steps. Both run in one thread, by turns, each a greenlet:
a turn costs a microsecond, and signals and what torch keeps by thread are those of the loop.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from loadtune.records.config import Recipe


class Handed(NamedTuple):
    """What the loop gets."""

    batch: Any
    recipe: Recipe
    """To be trained in."""
    is_probed: bool
    """Whether somebody wants to know what it is computed in."""


class Handover:
    """The loop's ``next(loader)`` returns what the session gives to `step`, which returns once the loop asks again."""

    def __init__(self, serve: Callable[[], object]) -> None:
        """``serve``: the session, which begins with the first `next_batch`."""
        self._session, self._loop = greenlet(serve), getcurrent()
        self.has_ended = False

    def step(self, batch: Any, recipe: Recipe, *, is_probed: bool = False) -> Counter[str]:
        """The session's side: elements of products by type. Raises what the loop raises, or ScriptEndedError."""
        products: Counter[str] = self._loop.switch(Handed(batch, recipe, is_probed))
        return products

    def next_batch(self, products: Counter[str]) -> Handed:
        """The loop's side. ``products``: of the step that ends."""
        self._loop = getcurrent()
        handed: Handed = self._session.switch(*[products] if self._session else [])
        return handed

    def end(self, error: BaseException) -> None:
        """The loop's side: it asks for no further batch. Does not return, if the session has begun."""
        self.has_ended = True
        if self._session:
            self._session.throw(error)
