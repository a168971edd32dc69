"""optuna-dashboard over a run's study, on 127.0.0.1.

In: a file and a port. Out: a server that answers until it is closed. The only module that imports optuna-dashboard,
which comes with the extra ``live``.
"""

import importlib.util
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from urllib.parse import quote
from wsgiref.simple_server import WSGIServer, make_server

from loadtune.errors import ResultError, UsageError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a request, as browsers keep idle connections open; none outlives the process."""

    daemon_threads = True


def dashboard_server(study: Path, port: int) -> WSGIServer:
    """A server that listens but does not answer yet. Port 0 takes any free port. Raises UsageError, ResultError."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise UsageError(
            "`--live` needs optuna-dashboard, which is not installed. Install it with"
            " `pip install '.[live]'` in loadtune's checkout. `loadtune report` works without it."
        )
    import optuna_dashboard

    app = optuna_dashboard.wsgi(open_study(study))
    try:
        return make_server(HOST, port, app, _Server)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--port is {port}, which cannot be used ({error}). It must be a free port from 0 to 65535 that this user"
            " may open. Choose another one, or --port 0 for any free port."
        ) from error


def open_study(file: Path) -> "RDBStorage":
    """The study in this file, for reading alone, also while a run puts newer ones in its place.

    Raises ResultError where it cannot be read.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    # SQLite itself refuses to write, and makes no file beside it. A connection for each look: the file is replaced.
    url = f"sqlite:///file:{quote(str(file.absolute()))}?mode=ro&uri=true"
    try:
        return RDBStorage(url, engine_kwargs={"poolclass": NullPool}, skip_table_creation=True)
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        why = str(error.__cause__ or error).splitlines()[0]
        raise ResultError(
            f"{file} cannot be read as a study: {why}. It takes the study.db of a run by this version of Optuna. Name"
            " another run's folder; `loadtune run --resume` writes the file anew."
        ) from error
