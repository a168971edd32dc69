"""optuna-dashboard over a run's study, on 127.0.0.1, read-only.

In: a folder and a port. Out: a server that answers until it is closed. The only module that imports optuna-dashboard,
which comes with the extra ``live``.
"""

import importlib.util
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from loadtune.errors import ResultError, UsageError
from loadtune.report.store import STUDY_FILE, newest_with

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from optuna.storages import RDBStorage

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
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise UsageError(
            "`--live` needs optuna-dashboard, which is not installed. Install it with"
            " `pip install '.[live]'` in loadtune's checkout. `loadtune report` works without it."
        )
    import optuna_dashboard

    app = _reading_only(optuna_dashboard.wsgi(open_study(study)))
    try:
        server = make_server(HOST, port, app, Server, _SilentHandler)
    except OSError as error:
        raise UsageError(
            f"--port is {port}, which cannot be used ({error.strerror or error}). It must be a free port that this user"
            " may open. Choose another one, or --port 0 for any free port."
        ) from error
    with server:
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


def open_study(file: Path) -> "RDBStorage":
    """The study in this file, for reading alone, also while a run puts newer ones in its place.

    Raises ResultError where it cannot be read.
    """
    from optuna.storages import RDBStorage
    from sqlalchemy.pool import NullPool

    def connected() -> sqlite3.Connection:
        """SQLite itself refuses to write, and makes no file beside it. SQLAlchemy hands it between threads."""
        return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)

    try:
        with closing(connected()) as database:
            database.execute("SELECT study_id FROM studies")
        # A connection for each look: the file is replaced.
        kept = {"creator": connected, "poolclass": NullPool}
        return RDBStorage("sqlite://", engine_kwargs=kept, skip_table_creation=True)
    except (sqlite3.Error, RuntimeError) as error:
        raise ResultError(
            f"{file} cannot be read as a study: {error}. It takes the study.db of a run by this version of Optuna."
            " Name another run's folder; `loadtune run --resume` writes the file anew."
        ) from error


def _reading_only(app: "WSGIApplication") -> "WSGIApplication":
    """Refuse every request that could change the study."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/json")])
        return [b'{"reason": "This dashboard shows a run of loadtune and changes nothing."}']

    return answer


class _SilentHandler(WSGIRequestHandler):
    """No line a request: the page asks every few seconds."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass
