"""A ``worker_init_fn`` that computes with the number of workers, as for seeds that no two ranks share."""

import dis
from functools import partial
from itertools import pairwise
from types import CellType, FunctionType, MethodType
from typing import Any

_NAME = "num_workers"


def is_given(init: Any, own: int) -> bool:
    """Whether a partial passes ``num_workers`` to it: the loader's own number, or None as mmengine does."""
    return isinstance(init, partial) and (init.keywords.get(_NAME, ...) in (own, None) or is_given(init.func, own))


def reason_against(init: Any, own: int) -> str | None:
    """Why it would compute with the loader's own number in other workers, too. None: nothing is known."""
    is_known = is_given(init, own)
    while init is not None:
        function = init if hasattr(init, "__code__") else init.__call__
        if isinstance(function, FunctionType | MethodType) and _reads_number(function, is_known):
            return f"its worker_init_fn ({function.__qualname__}) reads {_NAME} by itself; set {_NAME} yourself"
        init = init.func if isinstance(init, partial) else getattr(init, "__wrapped__", None)
    return None


def _reads_number(function: Any, is_known: bool) -> bool:
    """Not by ``get_worker_info()``, which tells the number of its own pool."""
    code, known, steps = function.__code__, function.__globals__, list(dis.get_instructions(function))
    is_typed = not is_known and _NAME in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ways = {each.opname for each in steps if each.argval == _NAME}
    cells = [each.cell_contents for each in function.__closure__ or () if each != CellType()]  # not the empty ones
    seen = [*cells, *(known[name] for name in code.co_names if name in known)]
    if "get_worker_info" in code.co_names and not any(_NAME in getattr(each, "__dict__", ()) for each in seen):
        ways -= {"LOAD_ATTR"}
    is_key = any(a.argval == _NAME and (b.opname == "BINARY_SUBSCR" or b.argrepr == "[]") for a, b in pairwise(steps))
    is_key |= _NAME in code.co_consts and not {"get", "getattr"}.isdisjoint(code.co_names)
    return bool(is_key or is_typed or _NAME in code.co_freevars or ways & {"LOAD_GLOBAL", "LOAD_ATTR"})
