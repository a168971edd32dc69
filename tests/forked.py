"""Python processes forked from this one, which has imported torch: a fresh interpreter takes seconds for that."""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from pathlib import Path

import torch
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

# As an optimizer's first step, jobs and runs do.
for name in ("torch._dynamo", "torchvision", "loadtune.api.tune"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

ROOT = Path(__file__).parents[1]
OURS = tuple(f"{ROOT / folder}{os.sep}" for folder in ("loadtune", "tests", "benchmarks"))
TORCHS = {
    (owner, name): getattr(owner, name)
    for owner, name in ((DataLoader, "_get_iterator"), (DataLoader, "__len__"), (_BaseDataLoaderIter, "__new__"))
}
"""What is replaced in scripts."""


def plain_new(cls, *args, **named):
    """Of object, which takes arguments of a class alone whose ``__new__`` was never replaced."""
    return object.__new__(cls)


_Started, _execute = subprocess.Popen, os.execvp


class BecomesError(BaseException):
    """In the place of ``os.execvp``: the process begins anew."""


class Forked:
    """What is needed of ``subprocess.Popen``, for ``python -m MODULE ...`` and ``python SCRIPT ...``. The processes of
    Python that it starts are forked, too."""

    returncode = None

    def __init__(self, args, **given):
        # A child's main thread is the one that forked: a new one, so that pytest's frames are not in its stacks.
        self.args = args
        thread = threading.Thread(target=self._fork, args=(words_of(args),), kwargs=given)
        thread.start()
        thread.join()

    def _fork(self, words, **given):
        becoming, became = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(became)
            os.read(becoming, 1)  # as Popen does: its group is not there before
            os.close(becoming)
        else:
            status = 1
            try:
                while words:
                    try:
                        words = become(words, **given)
                    except BecomesError as executed:
                        (words,), given = executed.args, {}
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
                if isinstance(ended.code, str):
                    print(ended.code, file=sys.stderr)
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
                status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
            finally:
                atexit._run_exitfuncs()
                sys.stdout.flush(), sys.stderr.flush()
                if status < 0:
                    signal.signal(-status, signal.SIG_DFL)
                    os.kill(os.getpid(), -status)
                os._exit(status)

    def wait(self, timeout=None):
        until = time.monotonic() + timeout if timeout is not None else None
        while self._ended(os.WNOHANG if until else 0) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def poll(self):
        return self._ended(os.WNOHANG)

    def _ended(self, options):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def finished(command, folder, **given):
    """As of ``subprocess.run``, of a process that is forked. What it prints is kept in this folder meanwhile."""
    folder.mkdir(exist_ok=True)
    paths = folder / "stdout", folder / "stderr"
    with paths[0].open("w") as stdout, paths[1].open("w") as stderr:
        code = Forked(command, stdout=stdout, stderr=stderr, **given).wait()
    return subprocess.CompletedProcess(command, code, *(path.read_text() for path in paths))


FORKED = {"args", "stdin", "stdout", "stderr", "env", "cwd", "pass_fds", "start_new_session", "preexec_fn"}


class Popen(_Started):
    """Processes of Python are forked, unless there are pipes to them."""

    def __new__(cls, args, **given):
        is_piped = subprocess.PIPE in (given.get(name) for name in ("stdin", "stdout", "stderr"))
        if words_of(args) and not is_piped and given.keys() <= FORKED:
            return Forked(args, **given)
        return super().__new__(cls)


PROCESSES = types.SimpleNamespace(Popen=Popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)
"""In place of ``subprocess``."""


def words_of(command):
    """What `become` takes. None: this is not Python, or with options of Python that a running one cannot have."""
    program, *words = [command] if isinstance(command, str) else map(str, command)
    path = Path(shutil.which(program) or program)
    if path.parent != Path(sys.executable).parent:
        return None
    if not path.name.startswith("python"):
        begins = b"#!" + os.fsencode(sys.executable)
        return [str(path), *words] if path.is_file() and path.read_bytes().startswith(begins) else None
    first = next((number for number, word in enumerate(words) if word not in ("-I", "-S", "-u")), None)
    return words if first is not None and (words[first][0] != "-" or words[first] in ("-c", "-m")) else None


def executes(file, args):
    """``os.execvp``."""
    if words := words_of([file, *args[1:]]):
        raise BecomesError(words)
    _execute(file, args)


def become(
    words, *, stdin=None, stdout=None, stderr=None, env=None, cwd=".", pass_fds=(), start_new_session=False,
    preexec_fn=None,
):  # fmt: skip
    """In the child: be as if just started, but for what is imported, and run that."""
    gc.freeze()  # else its first collection copies all that this process has
    if start_new_session:
        os.setsid()
    for number, file in enumerate((stdin, stdout, stderr)):
        if file == subprocess.DEVNULL:
            file = os.open(os.devnull, os.O_RDWR)
        if file is not None:
            os.dup2(1 if file == subprocess.STDOUT else file if isinstance(file, int) else file.fileno(), number)
    for number in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *pass_fds}:
        with contextlib.suppress(OSError):
            os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, closefd=False)  # noqa: SIM115
        for number, mode in enumerate("rww")
    )
    os.chdir(cwd or ".")
    environment = dict(os.environ if env is None else env)
    os.environ.clear()
    os.environ.update(environment)
    _show(environment)
    sys.excepthook, tempfile.tempdir = sys.__excepthook__, None
    threading.current_thread().__class__ = threading._MainThread  # torch handles signals in no other
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    multiprocessing.current_process()._config.pop("tempdir", None)
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children = set()  # its exit would end the workers of whoever forked it
    multiprocessing.context._default_context._actual_context = None
    multiprocessing.resource_tracker._resource_tracker._fd = None  # this process has none yet
    multiprocessing.forkserver._forkserver.__init__()  # nor this
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if preexec_fn is not None:
        preexec_fn()
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    warnings.resetwarnings()
    for category in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", category)
    faulthandler.disable()  # it is on, so `enable` alone would leave SIGABRT as a library may have put it back
    faulthandler.enable()
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    torch.default_generator.manual_seed(67280421310721)  # what a process begins with
    random.seed()
    subprocess.Popen, os.execvp = Popen, executes
    run(words)


def run(words):
    options = set()
    while words[0] in ("-I", "-S", "-u"):
        options.add(words.pop(0))
    kind = words.pop(0) if words[0] in ("-c", "-m") else None
    beside = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(words[0])))
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [beside, *known]
    sys.argv = ["-c", *words[1:]] if kind == "-c" else list(words)
    if kind != "-m":
        import_ours_again()
    if not options & {"-I", "-S"} and any(os.path.exists(f"{path}/sitecustomize.py") for path in known):
        customize()
    if kind == "-m":
        for name in (words[0], f"{words[0]}.__main__"):  # which would warn that it was imported already
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(main))
    else:
        runpy.run_path(words[0], run_name="__main__")


def import_ours_again():
    """So that nothing is left of other tests."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(OURS) and name != __name__:
            del sys.modules[name]
    for (owner, name), own in TORCHS.items():
        setattr(owner, name, plain_new if own is object.__new__ else own)


def customize():
    """What ``sitecustomize`` on PYTHONPATH does, as if torch was imported first."""
    import_ours_again()
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")  # puts the user's in its place
    for finder in [each for each in sys.meta_path if getattr(each, "__name__", "") == "_Finder"]:
        sys.meta_path.remove(finder)
        finder.find_spec.__globals__["_hook"]()


def _show(environment):
    """In /proc, where processes are found by it."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    first = "LOADTUNE_RUN"
    shown = [f"{name}={environment[name]}" for name in (first, *(environment.keys() - {first})) if name in environment]
    text = os.fsencode("\0".join(shown))[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
