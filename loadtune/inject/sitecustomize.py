"""First on PYTHONPATH under `loadtune exec` and `loadtune run -- COMMAND`: waits for torch's DataLoader, and runs the
user's own sitecustomize.

Imports neither torch nor loadtune before torch's DataLoader is imported. Whatever goes wrong here is said, and the
script runs as without it. Processes that multiprocessing starts have it, too: some are ranks that train.
"""

import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_VARIABLE = "LOADTUNE_RUN" if "LOADTUNE_RUN" in os.environ else "LOADTUNE_EXEC"


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
    """Of the launcher's loadtune alone; where the script would import another one, that stays what it imports."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    ours = os.path.join(os.path.dirname(_HERE), "__init__.py")
    try:
        spec = find_spec("loadtune")
        if spec is None:  # the script's interpreter has none
            spec = spec_from_file_location("loadtune", ours)
            sys.modules["loadtune"] = module = module_from_spec(spec)  # type: ignore[arg-type]
            spec.loader.exec_module(module)  # type: ignore[union-attr]
        elif os.path.realpath(spec.origin or "") != os.path.realpath(ours):
            where = spec.origin or ", ".join(spec.submodule_search_locations or ())
            raise ImportError(f"the script would import another loadtune: {where}. Remove or rename that one")
        if _VARIABLE == "LOADTUNE_RUN":
            from loadtune.script import bench as hook
        else:
            from loadtune.inflight import hook  # type: ignore[no-redef]

        _mark("hooked")
        hook.install()
    except Exception as error:
        _say(error)


def _mark(what: str) -> bool:
    """For the launcher, which says at the end what was not reached. False: it was marked before."""
    try:
        open(os.path.join(json.loads(os.environ[_VARIABLE])["folder"], what), "x").close()
    except FileExistsError:
        return False
    except (OSError, LookupError, ValueError, TypeError):  # the launcher is gone, its disk is full, it is not named
        pass
    return True


def _say(error: Exception) -> None:
    if _mark("failed"):  # once in all processes
        print(f"loadtune: not active ({type(error).__name__}: {error})", file=sys.stderr)


def _chain() -> None:
    """Run the sitecustomize that Python would have found without this one. Its errors are its own."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _HERE])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    if _VARIABLE in os.environ:  # else of a child that was given PYTHONPATH alone
        _run = json.loads(os.environ[_VARIABLE])
        if "step" in _run and os.environ.get("SLURM_STEPID") != _run["step"]:
            print(
                "srun starts ranks where what they write cannot be held back. Start them by torchrun.", file=sys.stderr
            )
            os._exit(2)
        if _given := _run.get("audit"):
            from _loadtune_audit import install  # type: ignore[import-not-found]  # beside this file

            install(**_given)
        sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
        _mark("began")
except Exception as _error:
    _say(_error)
finally:
    _chain()
