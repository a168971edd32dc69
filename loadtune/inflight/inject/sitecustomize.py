"""First on PYTHONPATH under `loadtune exec`: waits for torch's DataLoader, and runs the user's own sitecustomize.

Imports neither torch nor loadtune before torch's DataLoader is imported. Whatever goes wrong here is said, and the
script runs as without it. Processes that multiprocessing starts have it, too: some are ranks that train.
"""

import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Finds one module, once, as whoever finds it without us, and installs the hook when it has run."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if name != "torch.utils.data.dataloader":
            return None
        sys.meta_path.remove(_Finder)  # type: ignore[arg-type]
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: object) -> None:
                run(module)  # type: ignore[arg-type]
                _hook()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _hook() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    path = [] if root in sys.path else [root]  # of this loadtune, where the script's interpreter has none
    sys.path += path
    try:
        from loadtune.inflight import hook

        hook.install()
        _mark("hooked")
    except Exception as error:
        print(f"loadtune: not active ({type(error).__name__}: {error})", file=sys.stderr)
    finally:
        for each in path:
            sys.path.remove(each)


def _mark(what: str) -> None:
    """For the launcher, which says at the end what was not reached."""
    folder = json.loads(os.environ["LOADTUNE_EXEC"])["folder"]
    if os.path.isdir(folder):  # not in a process that outlives the launcher
        open(os.path.join(folder, what), "w").close()


def _chain() -> None:
    """Run the sitecustomize that Python would have found without this one. Its errors are its own."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _HERE])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
    _mark("began")
except Exception as _error:
    print(f"loadtune: not active ({type(_error).__name__}: {_error})", file=sys.stderr)
finally:
    _chain()
