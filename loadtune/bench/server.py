"""The bench's request loop: a request comes in, an answer, failed or not, goes out, memory is cleaned up between."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

from loadtune.bench.circumstances import Circumstances, Witness
from loadtune.bench.failures import failure_from, leaves_context_intact
from loadtune.bench.line import Line
from loadtune.bench.protocol import Answer, Begin, Exit, Refused, Request, Stop, failed_value
from loadtune.bench.session import Session
from loadtune.errors import LoadtuneError
from loadtune.records import TrialFailure
from loadtune.stream.sample_table import SampleTable

_Result = TypeVar("_Result")


def serve(connection: Connection, samples: SampleTable | None = None) -> None:
    """Answer until told to exit. ``samples``: where the controller reads which samples are being loaded."""
    server = Server(connection.recv(), Line(connection, samples))
    while True:
        try:
            request = connection.recv()
        except EOFError:  # the controller is gone
            return
        if isinstance(request, Exit):
            return
        if not isinstance(request, Stop):  # one that crossed an answer on its way is late
            connection.send(server.answer(request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """An exception as data: holding on to the exception would hold on to the tensors of its frames."""

    failure: Refused | TrialFailure
    context_intact: bool


class Server:
    """Answers requests. It builds the workload at once; if that fails, every request is answered with the error."""

    def __init__(self, begin: Begin, line: Line) -> None:
        self._line = line
        self._on_cuda = begin.device.kind == "cuda"
        self._witness: Witness | None = None
        self._session = self._attempt(lambda: Session(begin, line))

    def answer(self, request: Request) -> Answer | Refused:
        """The one reply to this request."""
        begun, session = time.monotonic(), self._session
        if isinstance(session, _Failed):
            return _reply(request, session, begun, healthy=False)
        self._witness = Witness(session.memory, on_cuda=self._on_cuda)
        budget = self._witness.budget_bytes
        outcome = self._attempt(lambda: session.run(request))
        # Here, not in the except block: while that runs, the traceback keeps every tensor of the failed step alive.
        recovered = session.recovers()
        if isinstance(outcome, _Failed):
            return _reply(request, outcome, begun, healthy=recovered and outcome.context_intact, budget_bytes=budget)
        return Answer(value=outcome, healthy=recovered)

    def _attempt(self, work: Callable[[], _Result]) -> _Result | _Failed:
        try:
            return work()
        except LoadtuneError as error:
            traceback.print_exc()  # into the log
            return _Failed(failure=Refused.of(error), context_intact=True)
        except Exception as error:
            traceback.print_exc()
            failure = failure_from(error, self._line.phase, self._circumstances(), self._line.samples.read())
            return _Failed(failure=failure, context_intact=leaves_context_intact(error))

    def _circumstances(self) -> Circumstances:
        return Circumstances(on_cuda=self._on_cuda) if self._witness is None else self._witness.testify()


def _reply(
    request: Request, failed: _Failed, begun: float, *, healthy: bool, budget_bytes: int | None = None
) -> Answer | Refused:
    if isinstance(failed.failure, Refused):
        return failed.failure
    value = failed_value(request, failed.failure, time.monotonic() - begun, budget_bytes)
    return Answer(value=value, healthy=healthy)
