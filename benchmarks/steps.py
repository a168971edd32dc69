"""Whether the steps that looks into the workers name are those that take the time: beside timers around each of them.

    python benchmarks/steps.py [PIPELINE ...] [--seconds 15] [--workers 2] [--json FILE]
    python benchmarks/steps.py [PIPELINE ...] --planted 20 [--jobs 3]
    python benchmarks/steps.py [PIPELINE ...] --cost 6 --workers 16

Each pipeline of `steps_pipelines.py` runs in two loaders at once, batch by batch in turn. The workers of the one have
the timers and are not looked at; those of the other are looked at and have no timers. *Error* is the largest difference
between the two shares of a step; what no timer is around is one step more. Shares are of loading and handing over
together: the thread of a worker's queue pickles each batch, copies into shared memory what is not there, and sends it.

``--planted``: each time, one slow statement is written into a copy of the file: before a step of a function of the user
(*line*), among the transforms of a Compose (*transform*), or before a step of the collate function (*collate*). It
takes 1.2 to 2.5 times as long as all else. *Named* is whether the first name is its line. Cases in which it is not the
largest step by timers are shown, do not count, and others take their place.

``--cost``: so many rounds of two loaders without timers, of which one is looked at. They load the same batches with the
same random numbers, in turns: four batches of each worker, then the other's, which goes first in every second turn. CPU
seconds that their workers take within batches, as a ratio to those without looks, with a 95% interval over rounds.
``--seconds`` is what each of the two loads in a round. The first ten of them have the most looks.

A pipeline whose packages are missing is left out, and says so. ``--jobs`` runs so many pipelines at once, for machines
that have cores for the workers of all. After ``--within-s`` nothing more is begun.
"""

import argparse
import ast
import gc
import json
import math
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
from scipy.stats import t as student
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from loadtune.stream import looks as looks_module
from loadtune.stream.looks import Looks

PIPELINES = Path(__file__).with_name("steps_pipelines.py")
NAMES = ("boxes", "audio", "video", "hdf5", "database", "rows")
NAMES += ("segmentation", "volumes", "augment", "text", "points", "mixture")
COLLATES = {"boxes": "detection_batch", "audio": "padded", "text": "text_batch"}
PLACES = {
    "line": [name for name in NAMES if name not in ("volumes", "augment")],  # these have no code of the user's
    "transform": ("boxes", "segmentation", "volumes", "mixture"),
    "collate": tuple(COLLATES),
}
REST, HANDING = "rest", "sending batches"
BATCH = 8
WARM, TURN = 2, 4
"""Batches of each worker before its CPU seconds count, as many as are asked for ahead; and in a turn."""
PRELOADED = ("torch", "torchvision", "scipy.stats", "loadtune.stream.looks")
STATEMENTS = {  # with a number that makes it longer
    "time.sleep({number} * 1e-6)": 1000,
    "sum(number * number for number in range({number}))": 20_000,
    "sorted(range({number}), key=str)": 20_000,
    "np.sort(np.random.rand({number}))": 20_000,
    'json.loads(json.dumps(["word"] * {number}))': 20_000,
    "spend({number})": 5000,
}


# The pipelines with and without timers


class Untimed(ast.NodeTransformer):
    def visit_With(self, node):
        self.generic_visit(node)
        return node.body if is_step(node) else node


def is_step(node):
    """A ``with step(...)``."""
    call = node.items[0].context_expr if isinstance(node, ast.With) else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") == "step"


def module_of(path, *, timed):
    tree = ast.parse(path.read_text())
    if not timed:
        tree = ast.fix_missing_locations(Untimed().visit(tree))
    module = sys.modules[path.stem] = types.ModuleType(path.stem)
    exec(compile(tree, str(path), "exec"), vars(module))
    return module


def named_by(path):
    """Line of the file, or name of a class → the step that it belongs to."""
    tree, found = ast.parse(path.read_text()), {}
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    for node in filter(is_step, ast.walk(tree)):
        label, *others = (each.value for each in node.items[0].context_expr.args)
        found |= dict.fromkeys(others, label)
        for part in (*node.body, *(functions[name] for name in others if name in functions)):
            found |= dict.fromkeys(range(part.lineno, part.end_lineno + 1), label)
    return found


def timed(module, function, label=None):
    @wraps(function)
    def call(*given, **named):
        with module.step(label or type(given[0]).__name__):
            return function(*given, **named)

    return call


def loader_of(module, name, folder, begin, *, is_timed, num_workers):
    """An endless loader. ``begin``: called in each worker."""
    torch.manual_seed(0)
    dataset, collate, methods = module.PIPELINES[name](folder)
    collate = collate or default_collate
    if is_timed:
        collate, begin = timed(module, collate, collate.__name__), partial(begin_timed, module, methods, folder)
    sampler = None if isinstance(dataset, IterableDataset) else RandomSampler(dataset, True, 10**7)
    return DataLoader(
        dataset,
        module.BATCHES.get(name, BATCH),
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        worker_init_fn=begin,
        multiprocessing_context="fork",
    )


def begin_timed(module, methods, folder, worker_id):
    """In a worker: timers around methods of libraries, around what fetches a batch, and what hands it over."""
    for owner, method in methods:
        if owner is not types.FunctionType:  # what is planted has a timer of its own
            function = getattr(owner, method)
            setattr(owner, method, timed(module, function, None if isinstance(owner, type) else function.__name__))
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        fetcher.fetch = noting(timed(module, fetcher.fetch, REST), module, folder / f"seconds-{worker_id}.json")
    ForkingPickler.dumps = staticmethod(timed_handing(module, ForkingPickler.dumps))
    Connection.send_bytes = timed_handing(module, Connection.send_bytes)


def timed_handing(module, function):
    """CPU seconds of the thread of the worker's queue, which also waits: for the interpreter's lock while the worker
    loads, and for the training process."""

    def call(*given):
        begun = time.thread_time()
        found = function(*given)
        if threading.current_thread().name == "QueueFeederThread":
            module.SECONDS[HANDING] = module.SECONDS.get(HANDING, 0.0) + time.thread_time() - begun
        return found

    return call


def noting(fetch, module, path):
    """Seconds are in a file, without those of the first batch, which opens files and imports."""
    wrote = [-math.inf]

    def fetch_and_note(*given):
        data = fetch(*given)
        if wrote == [-math.inf]:
            module.SECONDS.clear()
            module.TIMES.clear()
            module.SECONDS[HANDING] = 0.0
        if time.monotonic() - wrote[0] > 0.3:
            wrote[0] = time.monotonic()
            replace(path, [module.SECONDS, module.TIMES])
        return data

    return fetch_and_note


def replace(path, value):
    path.with_suffix(".new").write_text(json.dumps(value))
    os.replace(path.with_suffix(".new"), path)


# Shares beside shares


def begin_watched(looks, worker_id):
    """In a worker: it is looked at from the second batch on."""
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        fetcher.fetch = watching(fetcher.fetch, looks, worker_id)


def watching(fetch, looks, worker_id):
    watches = []

    def fetch_and_watch(*given):
        data = fetch(*given)
        if not watches:
            watches.append(looks.watch(worker_id, given[0].dataset, given[0].collate_fn))
        return data

    return fetch_and_watch


@dataclass(frozen=True, slots=True)
class Ran:
    """Two loaders: what the timers of the one say, and the looks into the other."""

    total: dict
    """Step → seconds."""
    times: dict
    """Step → how often it was taken."""
    num_samples: int
    steps: tuple
    num_looks: int


def both(path, name, folder, given, seconds):
    looks = Looks()
    make = partial(loader_of, name=name, folder=folder, num_workers=given.workers)
    with_timers = make(module_of(path, timed=True), begin=None, is_timed=True)
    looked_at = make(module_of(path, timed=False), begin=partial(begin_watched, looks), is_timed=False)
    gc.collect()
    gc.freeze()  # else a collection looks through all modules, and falls into other steps in other workers
    begun, batches = time.monotonic(), (iter(with_timers), iter(looked_at))
    for turn in count():
        if turn >= 4 * given.workers and time.monotonic() - begun > seconds:
            break
        for each in batches:
            next(each)
    slots = range(1, given.workers + 1)
    num_looks = sum(seen.sum() for slot in slots for step, seen in looks.read(slot).steps.items() if step)
    total, times = Counter(), Counter()
    for file in folder.glob("seconds-*.json"):
        for into, counted in zip((total, times), json.loads(file.read_text()), strict=True):
            into.update(counted)
        file.unlink()
    return Ran(total, times, times[REST] * with_timers.batch_size, looks.steps(), round(num_looks))


def step_named(name, steps, stem):
    """The step with a timer that a look means by this name. ``steps``: by lines and names."""
    if name.startswith(HANDING):
        return HANDING
    if at := re.search(rf"{stem}\.py:(\d+)", name):
        return steps.get(int(at[1]), REST)
    return next((steps[word] for word in reversed(re.findall(r"\w+", name)) if word in steps), REST)


def compared(name, given):
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        ran = both(PIPELINES, name, Path(folder), given, given.seconds)
    total, steps = ran.total, ran.steps
    whole_s, seen = math.fsum(total.values()), dict.fromkeys([*total, REST], 0.0)
    owners = named_by(PIPELINES) | {label: label for label in total} | module_of(PIPELINES, timed=False).PARTS
    named = [(each, step_named(each.name, owners, PIPELINES.stem)) for each in steps]
    for each, label in named:
        seen[label] = seen.get(label, 0.0) + each.share
    true = {label: total.get(label, 0.0) / whole_s for label in seen}
    largest = max(true, key=true.__getitem__)
    return {
        "looks": ran.num_looks,
        "largest": largest,
        "is_first": bool(steps) and named[0][1] == largest,
        "behind": true[largest] - true.get(named[0][1], 0.0) if steps else math.nan,
        "error": max(abs(seen[label] - true[label]) for label in seen),
        "shares": {label: [true[label], seen[label]] for label in sorted(true, key=lambda each: -true[each])},
        "names": [[each.name, each.share, each.waits, label] for each, label in named],
    }


def table(names, given):
    print("| pipeline | looks | largest by timers | largest by looks | worst error, points | names seen |")
    print("|---|---|---|---|---|---|")
    found = printed(table_line, compared, [(name,) for name in names], given)
    ran = [row for row in found if "error" in row]
    worst = max((100 * row["error"] for row in ran), default=math.nan)
    print(f"\nlargest first in {sum(row['is_first'] for row in ran)} of {len(ran)}; worst error {worst:.1f} points")
    for row in ran:
        if not row["is_first"]:
            print(f"{row['pipeline']}: what is named first is {100 * row['behind']:.1f} points behind by timers")
    return found


def table_line(row):
    largest = f"{row['largest']} {row['shares'][row['largest']][0]:.0%}"
    names = [f"{share:.0%} `{name}`" for name, share, *_ in row["names"][:3]] or ["–"]
    return row["looks"], largest, names[0], f"{100 * row['error']:.1f}", "; ".join(names)


def printed(line, function, cases, given):
    """What each case gave, a pipeline's name and more, with its line of a table printed as soon as it is there."""
    found = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for (name, *_), row in zip(cases, pool.map(partial(apart, function, given), cases), strict=True):
            found.append({"pipeline": name} | row)
            cells = (f"not run: {row['reason']}",) if "reason" in row else line(row)
            print("|", *(f"{each} |" for each in (name, *cells)), flush=True)
    return found


def apart(function, given, case):
    """In a process of its own: libraries, patches and failures of one pipeline are not another's."""
    if time.monotonic() > given.ends:
        return {"reason": "no time was left"}
    try:
        with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
            return pool.submit(guarded, function, *case, given).result()
    except BrokenProcessPool as error:
        return {"reason": str(error)}


def guarded(function, *given):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        return function(*given)
    except (ImportError, OSError) as error:  # a shared library of a package may be missing, too
        return {"reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"reason": f"{type(error).__name__}: {error}"}


# A slow line


def section_of(name):
    """(First, last) line of what belongs to a pipeline: from its heading to the next."""
    lines = PIPELINES.read_text().splitlines()
    heads = [number for number, line in enumerate(lines, 1) if re.match(r"# \w+: ", line)] + [len(lines)]
    begin = next(number for number in heads if lines[number - 1].startswith(f"# {name}: "))
    return begin, heads[heads.index(begin) + 1]


def places(kind, name):
    """Lines before which a slow one may be planted, each with the step that it is before."""
    tree, (begin, end) = ast.parse(PIPELINES.read_text()), section_of(name)
    inside = [node for node in ast.walk(tree) if begin < getattr(node, "lineno", 0) < end]
    if kind == "transform":
        composed = next(node for node in inside if isinstance(node, ast.Call) and ends_in_compose(node.func))
        return [(each.lineno, getattr(each.func, "attr", None)) for each in composed.args[0].elts]
    functions = [node for node in inside if isinstance(node, ast.FunctionDef)]
    some = [node for node in functions if (node.name == COLLATES.get(name)) == (kind == "collate")]
    steps = (each for function in some for each in ast.walk(function) if is_step(each))
    return [(each.lineno, each.items[0].context_expr.args[0].value) for each in steps]


def ends_in_compose(node):
    return "Compose" in (getattr(node, "attr", ""), getattr(node, "id", ""))


def planted(name, kind, seed, given):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = both(PIPELINES, name, folder, given, 4.0)
        number, before = chance.choice(places(kind, name))
        a_time_s = math.fsum(plain.total.values()) / (plain.times[before] or plain.num_samples)
        text, size = chance.choice(list(STATEMENTS.items()))
        statement = lasting(text, size, chance.uniform(1.2, 2.5) * a_time_s)
        path, lines = folder / "own_pipelines.py", PIPELINES.read_text().splitlines()
        indent = re.match(" *", lines[number - 1])[0]
        if kind == "transform":
            lines.insert(number - 1, indent + ("A.Lambda(image=slowly)," if name == "segmentation" else "slowly,"))
            number, indent = next(n for n, line in enumerate(lines) if line.startswith("def slowly")) + 3, "    "
        lines[number - 1 : number - 1] = [f'{indent}with step("planted", "spend"):', f"{indent}    {statement}"]
        path.write_text("\n".join(lines) + "\n")
        ran, owners = both(path, name, folder, given, given.seconds), named_by(path)
    return {
        "kind": kind,
        "statement": statement,
        "before": lines[number + 1].strip(),
        "looks": ran.num_looks,
        "true": ran.total.get("planted", 0.0) / math.fsum(ran.total.values()),
        "is_largest": max(ran.total, key=ran.total.__getitem__) == "planted",
        "is_first": bool(ran.steps) and step_named(ran.steps[0].name, owners, path.stem) == "planted",
        "names": [[each.name, each.share, each.waits] for each in ran.steps],
    }


def lasting(text, number, seconds):
    """A statement with the number with which it takes so long. Tried at that length, too: its time may grow faster than
    the number."""
    module = module_of(PIPELINES, timed=False)
    for _ in range(3):
        begun = time.perf_counter()
        exec(text.format(number=number), vars(module))
        number = max(1, round(number * seconds / (time.perf_counter() - begun)))
    return text.format(number=number)


def plant(names, given):
    names = able(names, given)
    print("| pipeline | where | planted | its share | looks | named | first by looks |\n|---|---|---|---|---|---|---|")
    chance, found, largest = random.Random(given.seed), [], []
    while names and len(largest) < given.planted and len(found) < 2 * given.planted and time.monotonic() < given.ends:
        cases = []
        for _ in range(given.planted - len(largest)):
            kind = chance.choice([kind for kind, able in PLACES.items() if not {*able}.isdisjoint(names)])
            cases.append((chance.choice([each for each in names if each in PLACES[kind]]), kind, chance.random()))
        found += printed(planted_line, planted, cases, given)
        largest = [row for row in found if row.get("is_largest")]
    print(f"\nnamed first in {sum(row['is_first'] for row in largest)} of {len(largest)} in which it was the largest")
    return found


def able(names, given):
    """Of the pipelines, those whose packages are there."""
    with ThreadPoolExecutor(given.jobs) as pool:
        made = dict(zip(names, pool.map(partial(apart, is_made, given), [(name,) for name in names]), strict=True))
    for name, row in made.items():
        if row:
            print(f"{name} is left out: {row['reason']}")
    return [name for name, row in made.items() if not row]


def is_made(name, _):
    with tempfile.TemporaryDirectory() as folder:
        module_of(PIPELINES, timed=False).PIPELINES[name](Path(folder))
    return {}


def planted_line(row):
    said = ("yes" if row["is_first"] else "**no**") + ("" if row["is_largest"] else ", is not the largest")
    first = "".join(f"{share:.0%} `{name}`" for name, share, _ in row["names"][:1])
    return row["kind"], f"`{row['statement']}`", f"{row['true']:.0%}", row["looks"], said, first


# What it costs


def begin_counted(spent, looked_at, worker_id):
    """In a worker: its row of ``spent`` is what its batches took: CPU seconds, those of the thread that looks, seconds;
    and their number."""
    watch = None if looked_at is None else looked_at.watch(worker_id, get_worker_info().dataset, default_collate)
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        fetcher.fetch = counting(fetcher.fetch, spent[worker_id], watch)


def counting(fetch, spent, watch):
    def clocks(num):
        return torch.tensor([time.process_time(), thread_s(watch), time.monotonic(), num], dtype=torch.float64)

    def fetch_and_count(*given):
        begun = clocks(0)
        data = fetch(*given)
        spent.add_(clocks(1) - begun)
        return data

    return fetch_and_count


def thread_s(watch):
    """CPU seconds of the thread that looks."""
    thread = getattr(watch, "_thread", None)
    path = f"/proc/self/task/{thread.native_id}/schedstat" if thread else os.devnull
    return int((Path(path).read_text().split() or [0])[0]) * 1e-9


class Counted:
    """A loader, and what its workers have spent."""

    def __init__(self, module, name, folder, given, looked_at, seed):
        self.num_workers, self.num_turns = given.workers, 0
        self.spent = torch.zeros(given.workers, 4, dtype=torch.float64).share_memory_()
        begin = partial(begin_counted, self.spent, looked_at)
        loader = loader_of(module, name, folder, begin, is_timed=False, num_workers=given.workers)
        torch.manual_seed(seed)  # the same samples, and random numbers, for both
        self.batches = iter(loader)
        self.wait()
        self.warm = self.spent.clone()

    def turn(self):
        for _ in islice(self.batches, TURN * self.num_workers):
            pass
        self.num_turns += 1
        self.wait()

    def wait(self):
        """Until all that was asked for is loaded."""
        while self.spent[:, 3].min() < WARM + TURN * self.num_turns:
            time.sleep(0.001)


def cost(name, given):
    """Of each round: the ratio of CPU seconds, and the looking thread's own share of them and of a core."""
    module, ratios, own = module_of(PIPELINES, timed=False), [], []
    looks_module._NUM_OFTEN *= 2  # a loader rests while the other loads, and is looked at then, too
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.cost):
            if ratios and time.monotonic() > given.ends:
                break
            make = partial(Counted, module, name, Path(folder), given, seed=number)
            looked_at, plain = make(Looks()), make(None)
            ended = time.monotonic() + 2 * given.seconds
            while time.monotonic() < ended:
                for each in (looked_at, plain, plain, looked_at):
                    each.turn()
            with_looks, without = ((each.spent - each.warm).sum(dim=0).tolist() for each in (looked_at, plain))
            ratios.append(with_looks[0] / without[0])
            own.append([with_looks[1] / with_looks[0], with_looks[1] / with_looks[2]])
            num_batches = round(without[3])
            del looked_at, plain, each  # ends the workers
    return {"batches": num_batches, "ratios": ratios, "own": own}


def costs(names, given):
    print("| pipeline | rounds | batches a round | CPU seconds with looks, more | the thread's own | of a core |")
    print("|---|---|---|---|---|---|")
    found = printed(cost_line, cost, [(name,) for name in names], given)
    ratios = [each for row in found for each in row.get("ratios", ())]
    if ratios:
        print(f"| all | {len(ratios)} | | {interval(ratios)} | | |")
    return found


def cost_line(row):
    own = [f"{statistics.fmean(each):.2%}" for each in zip(*row["own"], strict=True)]
    return len(row["ratios"]), row["batches"], interval(row["ratios"]), *own


def interval(ratios):
    """Mean of the logarithms of ratios with its 95% interval, as percentages more."""
    logs = [math.log(each) for each in ratios]
    mean, half = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        half = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.expm1(min(each, 9.0)) for each in (mean - half, mean, mean + half))
    return f"{middle:+.2%} ({low:+.2%} to {high:+.2%})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipelines", nargs="*", choices=[*NAMES, []], default=[])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--workers", type=int, default=2, help="of each loader")
    parser.add_argument("--jobs", type=int, default=1, help="pipelines at once")
    parser.add_argument("--within-s", type=float, default=math.inf)
    parser.add_argument("--planted", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of what is planted where")
    parser.add_argument("--cost", type=int, metavar="ROUNDS")
    parser.add_argument("--json", type=Path, help="all shares and names")
    given = parser.parse_args()
    given.ends = time.monotonic() + given.within_s
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    get_context("forkserver").set_forkserver_preload([*PRELOADED])
    run = plant if given.planted else costs if given.cost else table
    found = run(given.pipelines or NAMES, given)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
