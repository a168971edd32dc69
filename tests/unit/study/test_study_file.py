"""The file of a study and what is behind it."""

import subprocess
import sys


def test_what_sqlalchemy_logs_while_a_query_is_cut_off_is_not_printed(tmp_path):
    """Ctrl-C in the middle of one logs a traceback."""
    log = "logging.getLogger('sqlalchemy.pool.impl.QueuePool').error('Error closing cursor')"
    opened = f"from loadtune.study.study_file import *; open_or_renew(Path({str(tmp_path / 'study.db')!r}), 0)"
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import logging; import optuna; optuna.logging.disable_default_handler(); {opened}; {log}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("", "")
