"""Other people's tests and training scripts: plain, under `loadtune exec`, and with switches that are forced.

    python benchmarks/conformance.py accelerate monai --sources FOLDER --json FILE
    python benchmarks/conformance.py scripts --sources FOLDER

``FOLDER`` has a checkout of each toolkit, by the name of its repository; nothing of them is kept here. The interpreter
needs the toolkits, pytest and pytest-timeout. No name: all suites. ``scripts``: all of `conformance_scripts.py`, which
can be named, too. Each difference is printed; with one the exit code is 1.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from conformance_scripts import COMMON, MAKE, OWN

HERE, PYTHON = Path(__file__).parent, sys.executable
MODES = ("plain", "exec", "forced")
LONGEST_S, TEST_S = 2400, 300
_BRAIN = ("dataloader", "checkpoints", "samplers", "batching", "data_pipeline", "dataset", "core", "fetch")
_MONAI = ("dataloader", "persistentdataset", "cachedataset_parallel", "cachedataset_persistent_workers")
_STATE = ("state_dict", "sampler", "incremental_state")
SUITES = {  # folder, what is added to PYTHONPATH, tests
    "pytorch": ("pytorch/test", "", ["test_dataloader.py"]),
    "accelerate": ("accelerate", "src", ["tests/test_data_loader.py"]),
    "lightning": (
        "pytorch-lightning/tests/tests_pytorch", "../../src",
        ["loops/test_fetchers.py", "trainer/test_dataloaders.py", "utilities/test_combined_loader.py"],
    ),
    "torchdata": ("data", "", [f"test/stateful_dataloader/test_{name}.py" for name in _STATE]),
    "speechbrain": ("speechbrain", "", [f"tests/unittests/test_{name}.py" for name in _BRAIN]),
    "monai": ("MONAI", "", [f"tests/data/test_{name}.py" for name in _MONAI]),
    "mmengine": ("mmengine", "", ["tests/test_runner/test_runner.py", "tests/test_dataset"]),
    "timm": ("pytorch-image-models", "", ["tests/test_scheduled_sampler.py", "tests/test_naflex_dataset.py"]),
}  # fmt: skip
_IMAGENET = "-a resnet18 --epochs 2 -b 2 -j 2 --seed 1 -p 1"
_TIMM = "--model test_vit --img-size 64 -b 4 -j 2 --epochs 2 --num-classes 48 --device cpu --log-interval 1"
_MAE = "--model mae_vit_base_patch16 --batch_size 4 --epochs 1 --device cpu --num_workers 2 --output_dir= --data_path"
SCRIPTS = {name: [[f"train_{name}.py"]] for name in OWN} | {  # the commands of each, one after another
    "accelerate": [["-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", PYTHON, "train_accelerate.py"]],
    "imagenet": [["{}/examples/imagenet/main.py", *_IMAGENET.split(), "images"]],
    "mae": [["train_mae.py", "{}/mae/main_pretrain.py", *_MAE.split(), "images"]],
    "mmengine-2": [["train_mmengine.py", "2"]],
    "speechbrain": [["train_speechbrain.py"]] * 2,
    "timm-train": [["{}/pytorch-image-models/train.py", *_TIMM.split(), "--data-dir=images"]],
}
ADDED = {"mae": "old", "timm-train": "pytorch-image-models"}
"""On PYTHONPATH from among the sources; ``old`` has timm 0.3.2, which MAE asks for."""


def run(arguments, mode, folder, cwd, added, **variables):
    """Runs Python once, its output added to files of the folder. Its exit code; None where it did not end."""
    hooks = folder / "hooks"
    hooks.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "conformance_hooks.py", hooks)
    (hooks / "sitecustomize.py").write_text("import conformance_hooks\n")
    paths = ":".join(map(str, (hooks, *added, HERE.parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CONFORMANCE_FOLDER": str(folder)}
    environment |= variables | ({"CONFORMANCE_SEED": "1"} if mode == "forced" else {})
    ours = [] if mode == "plain" else [PYTHON, "-m", "loadtune", "exec", "--out", str(folder), "--"]
    with (folder / "out").open("ab") as out, (folder / "err").open("ab") as err:
        command = [*ours, PYTHON, *arguments]
        child = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=err, start_new_session=True)
        try:
            return child.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return None


def lines(folder, name):
    path = folder / name  # a line of ours may come behind a progress bar
    return re.split("[\r\n]+|(?=loadtune: )", path.read_text(errors="replace")) if path.exists() else []


def loaders(folder):
    """How many there were, switches, and those that were left alone, with the reasons."""
    kinds, file = Counter(each.split(" ")[0] for each in lines(folder, "switches")), folder / "inflight.json"
    found = json.loads(file.read_text())["loaders"] if file.exists() else []
    alone = (f"{each['name'].split(' at ')[0]}: {each['reason']}" for each in found if each["state"] == "left alone")
    switched = sum(bool(each["switches"]) for each in found)
    counts = {"loaders": len(found), "switched": switched, "forced": kinds["forced"], "delivered": kinds["delivered"]}
    return counts | {"left_alone": dict(Counter(alone))}


def suite(name, sources, scratch):
    folder, added, tests = SUITES[name]
    cwd, found, outcomes = sources / folder, {}, {}
    if absent := [test for test in tests if not (cwd / test).exists()]:
        return {"did_not_run": f"{cwd} has no {', '.join(absent)}", "differs": []}
    # Not pytest's own capture: its file is open in the workers, too, and would count as one that the dataset shares.
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conformance_hooks", "--capture=sys"]
    for mode in MODES:
        kept, outcomes[mode] = scratch / name / mode, {}
        code = run([*options, f"--timeout={TEST_S}", *tests], mode, kept, cwd, [cwd / added])
        for each in filter(None, lines(kept, "tests")):
            test, outcome, reason = each.split(" ", 2) if each.count(" ") > 1 else (*each.split(" "), "")
            if test not in outcomes[mode] or outcome != "passed":
                outcomes[mode][test] = outcome, reason
        counts = Counter(outcome for outcome, _ in outcomes[mode].values())
        found[mode] = {"code": code, **counts, **({} if mode == "plain" else loaders(kept))}
    plain = outcomes["plain"]
    found["not_passed_plain"] = {test: each for test, each in plain.items() if each[0] != "passed"}
    found["differs"] = []
    for mode in MODES[1:]:
        for test, (outcome, reason) in sorted(outcomes[mode].items()):
            if outcome != plain.get(test, [""])[0]:  # once more, alone: another test's failure may be the cause
                alone = run([*options, test], mode, scratch / name / f"{mode} alone", cwd, [cwd / added])
                again = "alone as plain" if (alone == 0) == (plain.get(test, [""])[0] == "passed") else "alone, too"
                found["differs"].append(f"{mode}, {again}: {test}: {outcome} {reason}")
        found["differs"] += [f"{mode}: {test}: did not run" for test in sorted({*plain} - {*outcomes[mode]})]
    return found


def script(name, sources, scratch):
    found = {}
    for mode in MODES:
        kept = scratch / name / mode
        (work := kept / "work").mkdir(parents=True)
        for own, text in OWN.items():
            (work / f"train_{own}.py").write_text(COMMON + text)
        run(["-c", MAKE], "plain", kept / "made", work, [])
        given = {"CONFORMANCE_RECORD": "1", "CONFORMANCE_SOURCES": str(sources)}
        added = [sources / each for each in (ADDED.get(name), "data") if each]
        commands = [[each.format(sources) for each in command] for command in SCRIPTS[name]]
        codes = [run(command, mode, kept, work, added, **given) for command in commands]
        if mode == "plain" and codes[-1] != 0:
            why = next((each for each in reversed(lines(kept, "err")) if each), "not a word on stderr")
            return {"did_not_run": f"it ends with {codes[-1]} without loadtune, too: {why}", "differs": []}
        found[mode] = {"codes": codes, **({} if mode == "plain" else loaders(kept)), **seen(kept)}
    plain, differs = found["plain"], []
    for mode in MODES[1:]:
        other = found[mode]
        random = any("random augmentation differs" in each for each in lines(scratch / name / mode, "err"))
        compared = ("codes", "samples", "stderr", *(() if random else ("batches", "losses")))
        unlike = [what for what in compared if plain[what] != other[what]]
        differs += [f"{mode}: {what}: {difference(plain[what], other[what])}" for what in unlike]
        other["augmentation_announced"] = random
        other["said"] = [each[10:] for each in lines(scratch / name / mode, "err") if each.startswith("loadtune: ")]
    for each in found.values():
        each |= {what: len(each[what]) for what in ("samples", "batches", "losses", "stderr")}
    return found | {"differs": differs}


def seen(folder):
    """What the loops got, the losses that were printed, and the kinds of lines on stderr, without figures and ours."""
    names = sorted(path.name for path in folder.glob("batches-*"))
    notes = [(name, *each.split(" ")) for name in names for each in lines(folder, name) if each]
    out, err = ([each for each in lines(folder, name) if not each.startswith("loadtune: ")] for name in ("out", "err"))
    said, kinds = "\n".join(out + err), (re.sub(r"[^A-Za-z ]|\b[a-f\d]{6,}\b", "", each).split() for each in err)
    return {
        "samples": [(name, ids) for name, ids, _ in notes] + re.findall(r"samples (\[.*\])", said),
        "batches": [(name, whole) for name, _, whole in notes],
        "losses": re.findall(r"loss[^\d\n]{0,9}(-?\d+\.\d+)(?![\dm])", said, re.IGNORECASE),
        "stderr": sorted(set(map(" ".join, kinds))),
    }


def difference(plain, other):
    at, was, became = next((at, *both) for at, both in enumerate(zip_longest(plain, other)) if both[0] != both[1])
    return f"{len(plain)} and {len(other)}; the first at {at}: {was} → {became}"


def show(name, row):
    told = [f"{name}: did not run: {row['did_not_run']}"] if "did_not_run" in row else []
    for mode in (each for each in MODES if each in row):
        figures = (f"{what} {each}" for what, each in row[mode].items() if what not in ("left_alone", "said"))
        nothing = mode == "forced" and not row[mode]["delivered"]
        told.append(
            f"{name:12} {mode:7} {', '.join(figures)}{'; SHOWS NOTHING: no switch delivered' if nothing else ''}"
        )
        told += [f"    left alone, {count} times: {why}" for why, count in row[mode].get("left_alone", {}).items()]
    told += [f"    plain: {test}: {' '.join(each)}" for test, each in row.get("not_passed_plain", {}).items()]
    told += [f"    DIFFERS: {each}" for each in row["differs"]]
    print("\n".join(told), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SUITES)}; scripts {', '.join(SCRIPTS)}")
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    every, look = (SCRIPTS, script) if asked.names[:1] == ["scripts"] else (SUITES, suite)
    names = [name for name in asked.names if name != "scripts"] or list(every)
    if unknown := set(names) - {*every}:
        parser.error(f"{', '.join(unknown)}: allowed are {', '.join(every)}")
    scratch, rows = Path(tempfile.mkdtemp(prefix="conformance-")), {}
    for name in names:
        rows[name] = look(name, asked.sources.resolve(), scratch)
        show(name, rows[name])
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    raise SystemExit(any(row["differs"] or "did_not_run" in row for row in rows.values()))


if __name__ == "__main__":
    main()
