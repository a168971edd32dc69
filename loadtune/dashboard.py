"""optuna-dashboard over a run's study, on 127.0.0.1, read-only.

In: a folder and a port. Out: a server that answers until it is closed. The only module that imports optuna-dashboard,
which comes with the extra ``live``.
"""

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from loadtune.errors import ResultError, UsageError
from loadtune.report.store import STUDY_FILE, newest_with

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"


class Server(ThreadingMixIn, WSGIServer):
    """One thread a request, as browsers keep idle connections open; none outlives the process."""

    daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/dashboard"


@contextmanager
def dashboard_server(study: Path, port: int) -> Iterator[Server]:
    """A server that listens but does not answer yet. Port 0 takes any free port. Raises UsageError, ResultError."""
    _check_installed()
    import optuna_dashboard

    from loadtune.study.dashboard_view import open_study

    app = reading_only(optuna_dashboard.wsgi(open_study(study)))
    try:
        server = Server((HOST, port), _SilentHandler)
    except OSError as error:
        raise UsageError(
            f"--port is {port}, which cannot be used ({error.strerror or error}). It must be a free port that this user"
            " may open. Choose another one, or --port 0 for any free port."
        ) from error
    with server:
        server.set_app(app)
        yield server


def study_file(where: Path) -> Path:
    """`where` itself if it is a file, else the newest ``study.db`` below it. Raises ResultError if there is none."""
    found = where if where.is_file() else newest_with(where, STUDY_FILE)
    if found is None:
        raise ResultError(
            f"{where} holds no study: there is no {STUDY_FILE} in it or up to two folders below. A run writes it when"
            " its search begins. Run `loadtune run`, or name the folder of a run."
        )
    return found


def reading_only(app: "WSGIApplication") -> "WSGIApplication":
    """Refuse every request that could change the study."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/json")])
        return [b'{"reason": "This dashboard shows a run of loadtune and changes nothing."}']

    return answer


def _check_installed() -> None:
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise UsageError(
            "`loadtune dashboard` needs optuna-dashboard, which is not installed. Install it with"
            " `pip install '.[live]'` in loadtune's checkout. `loadtune report` works without it."
        )


class _SilentHandler(WSGIRequestHandler):
    """No line a request: the page asks every few seconds."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass
