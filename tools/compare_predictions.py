"""Compare what two versions of resperf answer: totals, bounds, layers, notes, texts.

    python tools/compare_predictions.py --against HEAD~3       # that revision's, then today's
    python tools/compare_predictions.py --write before.json.gz
    python tools/compare_predictions.py --against before.json.gz --tolerance 1e-9

The answers to compare with are written by the code of before, never by today's: a revision is
checked out into a temporary folder, and its own copy of this script runs there. What that file
holds is asked again; every difference is printed, those that `--expected` explains under its
reason. Exits with 1 if any other is left.

The questions are
- every known device in every framework, precision, eager and compiled, inference and training: on
  four networks at batch 1 if the first is answered, else the refusal is compared
- every bundle, on its first device, all networks of models/networks and of --networks, batch 1, 8
- bundles with a stored calibration, by layers and by runs
- further options of `resperf.predict`, once each
- the text of the commands in `COMMANDS`

Needs `pip install '.[train]'` and twelve exports, as `python tools/benchmarks/export.py compared
build/compared` makes them in an environment of its own. 5 to 9 minutes on two cores.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ROOT / "tools" / "benchmarks" / "networks.toml"
COMPARED = tomllib.loads(NETWORKS.read_text(encoding="utf-8"))["lists"]["compared"]
EXPORTS = (
    *COMPARED["script"], *COMPARED["dynamo"],
    *(f"{name}-{form}" for name, form in COMPARED["converted"].items()),
)  # fmt: skip
"""Files in --networks."""
BATCHES = (1, 8)
FIRST, *OTHERS = "lenet5", "resnet18", "mobilenet_v2", "bert_base_128"
"""Networks on which every setting is asked."""
PRECISIONS = (None, "fp32", "tf32", "amp", "fp16", "bf16", "int8")
WAYS: tuple[Mapping[str, Any], ...] = ({}, {"compiled": True}, {"training": True})
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"network": "resnet18", "device": "own.toml", "batch": 1},
    {"network": "resnet18", "device": "own.toml", "batch": 1, "precision": "fp16"},
    {"network": "resnet18", "device": "cpu", "batch": 1, "threads": 1},
    {"network": "resnet18", "device": "cpu", "batch": 1, "strict": True},
    {"network": "resnet18", "device": "h100", "batch": 1, "strict": "range"},
    {"network": "resnet18", "device": "a100", "batch": 2, "host_dispatch_us": 9.0},
    {"network": "vgg16", "device": "cpu", "batch": 2, "block": "conv3:conv20"},
    {"network": "yolos_tiny", "device": "cpu", "batch": 1, "strict": "range"},
    {"network": "unet", "device": "rtx5090", "precision": "amp", "batch": 16},
    *(
        {"network": network, "device": "l4", "framework": framework, "batch": 1, **how}
        for framework in ("onnxruntime", "tensorrt")
        for network in ("resnet18", "vit_tiny_patch16_224", "regnetz_b16-fp16")
        for how in ({}, {"precision": "fp16"})
    ),
    {"network": "lenet5", "device": "cpu", "shapes": {"*": [2, 1, 28, 28]}},
    {"network": "lenet5", "device": "cpu", "batch": 1, "custom_ms": {"my.Op": 0.5}},
)
COMMANDS = (
    "predict resnet50 --device cpu --batch 1",
    "predict resnet50 --device cpu --batch 1 8 32",
    "predict lenet5 --device cpu --all",
    "predict lenet5 --device cpu --json",
    "predict resnet18 --device rtx4090 --precision amp --batch 256",
    "predict resnet18 --device rtx3090 --precision amp --train --batch 64",
    "predict resnet50 --device a100 --train --batch 64 --devices 1 2 4 8",
    "predict vgg16 --device 1080ti",
    "predict resnet50 --device h100 --precision fp16",
    "predict resnet50 --device l4 --precision bf16",
    "predict lenet5 --device all",
    "predict resnet18 --device cpu --strict-range",
    "predict resnet18 --device h100 --batch 8 --by kind",
    "predict resnet18 --device cpu --within 50ms",
    "compare resnet18 --device h100 l4 --batch 8",
    "predict lenet5 --device a100 --host-dispatch-us 20",
    "predict-layer conv batch=8 channels_in=64 size=56 kernel=3 channels_out=64 padding=same "
    "--device cpu",
    "predict-layer matmul batch=1 outer=8 rows=128 depth=64 columns=128 --device h100",
    "devices",
    "devices --json",
    "predict nosuch.onnx",
    "predict resnet18 --device nosuch",
    "predict resnet18 --device h100 --precision int8",
    "predict resnet18 --device l40s --precision fp16 --batch 1 8 --json",
    "predict lenet5 --bundle {folder}/runs-calibrated",
)
"""Whose standard output, standard error and exit status are compared."""
OWN_CARD = """
[mycard]
name = "A card of one's own"
class = "cuda"
compute_capability = "8.9"
process_nm = 5
multiprocessors = 60
cores_per_multiprocessor = 128
boost_mhz = 2000
peak_tflops = { fp32 = 30.72, tf32 = 61.0, fp16 = 122.0, bf16 = 122.0 }
bandwidth_gb_s = 450
memory_gib = 16
cache_mib = 32
board_w = 140
bus = "PCIe 4.0 x16"
bus_gb_s = 31.5
sources = ["made up"]
"""
MEASURED_AT = "2026-01-01T00:00:00+00:00"
EXPECTED = "TOML with [[difference]]: query and value (patterns), reason"
Query = Mapping[str, Any]
"""``network`` and options of `resperf.predict`; ``calibrated`` if a calibration is stored."""
Answer = dict[str, Any]
"""The JSON of a prediction, or ``error``, or ``text`` and ``exit`` of a command."""


# What is asked, and what this code answers


def settings() -> Iterator[Query]:
    """Yield every setting of every known device, answered or not, on the first network."""
    import resperf

    for device in resperf.list_devices():
        for framework, precision, how in product(device.frameworks, PRECISIONS, WAYS):
            yield {
                "network": FIRST, "batch": 1, "device": device.name, "framework": framework,
                "precision": precision, **how,
            }  # fmt: skip


def networks_of_bundles() -> Iterator[Query]:
    """Yield every network on every bundle's first device, and with stored calibrations."""
    import resperf

    reference = sorted(path.stem for path in (ROOT / "models/networks").glob("*.onnx"))
    first_devices: dict[str, str] = {}
    for device in resperf.list_devices():
        for bundle in device.bundles:
            first_devices.setdefault(bundle, device.name)
    for network in (*reference, *EXPORTS):
        for bundle, name in first_devices.items():
            where = {"network": network, "bundle": bundle, "device": name}
            for batch in BATCHES:
                yield {**where, "batch": batch}
            if name == "cpu":
                yield {**where, "batch": 1, "calibrated": True}
        yield {"network": network, "bundle": "runs-calibrated", "batch": 1}


def answers(networks: Path, labels: Iterable[str] | None = None) -> dict[str, Answer]:
    """Answer everything with a home and caches of their own; label -> answer.

    Only `labels` are answered, if they are given.
    """
    wanted = None if labels is None else set(labels)
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        folder = Path(scratch)
        for name in EXPORTS:
            shutil.copy(networks / f"{name}.onnx", folder)
        (folder / "own.toml").write_text(OWN_CARD)
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "RESPERF_HOME": f"{folder}/home"}
        os.environ |= {"COLUMNS": "120", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        calibrate_by_runs(folder)
        store_calibrations(folder / "calibrated")
        by_label: dict[str, Answer] = {}

        def ask(queries: Iterable[Query]) -> None:
            groups: dict[str, list[Query]] = defaultdict(list)
            for query in queries:
                if wanted is None or label(query) in wanted:
                    groups[f"{query['network']} {query.get('calibrated', '')}"].append(query)
            # Of one network at a time, so that it is read once.
            parts = [
                (folder, group[start : start + 60])
                for group in sorted(groups.values(), key=len, reverse=True)
                for start in range(0, len(group), 60)
            ]
            for some in pool.map(_answered, parts):
                by_label.update(some)

        with ProcessPoolExecutor() as pool:
            first = list(settings())
            ask(first)
            ask({**query, "network": name} for query in first for name in OTHERS
                if "error" not in by_label.get(label(query), {"error": ""}))  # fmt: skip
            ask((*networks_of_bundles(), *OPTIONS))
            texts = pool.map(_text, [(folder, command) for command in COMMANDS])
            by_label |= {f"resperf {text}": own for text, own in zip(COMMANDS, texts, strict=True)}
    return by_label


def label(query: Query) -> str:
    """Name a query by its options."""
    return " ".join(f"{name}={value}" for name, value in query.items() if value is not None)


def _answered(part: tuple[Path, Sequence[Query]]) -> dict[str, Answer]:
    import resperf

    folder, group = part
    by_label: dict[str, Answer] = {}
    for query in group:
        options = {name: value for name, value in query.items() if value is not None}
        home = "calibrated" if options.pop("calibrated", False) else "home"
        os.environ["RESPERF_HOME"] = f"{folder}/{home}"
        network = options.pop("network")
        path = folder / f"{network}.onnx"
        if options.get("bundle") == "runs-calibrated":
            options["bundle"] = folder / "runs-calibrated"
        if options.get("device") == "own.toml":
            options["device"] = str(folder / "own.toml")
        try:
            prediction = resperf.predict(path if path.exists() else network, **options)
            by_label[label(query)] = json.loads(_placed(folder, json.dumps(prediction.to_json())))
        except resperf.ResperfError as error:
            by_label[label(query)] = {"error": _placed(folder, str(error))}
    return by_label


def _text(part: tuple[Path, str]) -> Answer:
    folder, command = part
    words = command.format(folder=folder).split()
    run = subprocess.run(
        [sys.executable, "-m", "resperf", *words], capture_output=True, text=True, check=False,
        cwd=folder, env={**os.environ, "RESPERF_HOME": f"{folder}/home"},
    )  # fmt: skip
    return {
        "exit": run.returncode,
        "text": _placed(folder, run.stdout).splitlines(),
        "stderr": _placed(folder, run.stderr).splitlines(),
    }


def _placed(folder: Path, text: str) -> str:
    """Replace what differs from run to run."""
    return text.replace(str(folder), "{folder}").replace(str(ROOT), "{root}")


# Stored calibrations. These two follow the code: they store the same times in its own form.


def calibrate_by_runs(folder: Path) -> None:
    """Calibrate a card's bundle by runs of networks."""
    times_ms = {"resnet18": 2.1, "resnet50": 4.4, "mobilenet_v2": 3.3, "densenet121": 10.2}
    rows = "".join(
        f"{ROOT}/models/networks/{name}.onnx,8,execution_ms,{time_ms},torch,amp\n"
        for name, time_ms in times_ms.items()
    )
    (folder / "runs.csv").write_text(f"network,batch,quantity,value,framework,precision\n{rows}")
    for command in (
        "dataset import runs.csv --format list --device rtx4090 -o runs.h5",
        "calibrate --device rtx4090 --runs runs.h5 -o runs-calibrated",
    ):
        answer = _text((folder, command))
        if answer["exit"]:
            raise SystemExit(f"resperf {command}: {answer['stderr']}")


def store_calibrations(home: Path) -> None:
    """Store a calibration of each CPU bundle for this machine: made times of its layers."""
    from resperf.bundle import Bundle, Calibration, LayerTimes, Source, save_calibration
    from resperf.lowering import lower_layers
    from resperf.platform import this_platform
    from resperf.workflows.calibrate_layers import CALIBRATION_LAYERS, fitted, times_there

    os.environ["RESPERF_HOME"] = str(home)
    here = replace(this_platform("cpu"), machine_checks={})
    for path in sorted((ROOT / "models/bundles").glob("cpu*/bundle.json")):
        bundle = Bundle.load(path.parent)
        there_ms, _ = times_there(
            bundle, lower_layers(CALIBRATION_LAYERS, bundle.setting, bundle.platform)
        )
        # Some kinds slower than others, and not evenly so.
        times_ms = {
            layer.key: ms * (0.6 + 0.1 * (len(layer.kind) % 7) + 0.02 * (index % 5))
            for index, (layer, ms) in enumerate(there_ms.items())
        }
        times = LayerTimes(MEASURED_AT, times_ms, drift=0.03)
        measured = Calibration(Source.LAYERS, bundle.setting, here, times=(times,))
        save_calibration(bundle, fitted(bundle, measured))


# Comparing


def differences(before: Any, now: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Yield ``path: old -> new`` for each value that differs."""
    inner = {}
    if isinstance(before, dict) and isinstance(now, dict):
        inner = {f"{path}.{name}".lstrip("."): (before.get(name, _ABSENT), now.get(name, _ABSENT))
                 for name in before | now}  # fmt: skip
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        inner = {f"{path}[{index}]": pair for index, pair in enumerate(pairs)}
    elif not _same(before, now, tolerance):
        yield f"{path}: {_short(before)} -> {_short(now)}"
    for name, (old, new) in inner.items():
        yield from differences(old, new, tolerance, name)


_ABSENT = object()


def _same(before: Any, now: Any, tolerance: float) -> bool:
    if before == now or not {type(before), type(now)} <= {int, float}:
        return bool(before == now)
    return tolerance > 0 and math.isclose(before, now, rel_tol=tolerance, abs_tol=1e-12)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = f"{len(value)} entries" if isinstance(value, list) else repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def report(
    before: Mapping[str, Answer], now: Mapping[str, Answer], tolerance: float, expected: Path | None
) -> int:
    """Print every difference, the expected ones by reason; return how many are not expected."""
    rules = tomllib.loads(expected.read_text())["difference"] if expected else []
    explained: dict[str, set[str]] = defaultdict(set)
    unexpected: set[str] = set()
    for name, old in before.items():
        rest = []
        for line in differences(old, now.get(name, {"error": "not answered"}), tolerance):
            path = line.partition(":")[0]
            reasons = (rule["reason"] for rule in rules if fnmatch.fnmatch(name, rule["query"])
                       and fnmatch.fnmatch(path, rule["value"]))  # fmt: skip
            if reason := next(reasons, ""):
                explained[reason].add(name)
            else:
                rest.append(line)
        if rest:
            unexpected.add(name)
            print(f"{name}: {len(rest)} differences", *rest, sep="\n    ")
    for reason, names in explained.items():
        print(f"{len(names)} answers differ as expected: {reason}")
    refused = sum("error" in answer for answer in before.values())
    print(f"{len(before)} answers ({refused} refusals) compared with tolerance {tolerance:g}: "
          f"{len(unexpected)} differ")  # fmt: skip
    return len(unexpected)


def answers_of(revision: str, networks: Path) -> dict[str, Answer]:
    """Let the code of a revision answer, by its own copy of this script."""
    with tempfile.TemporaryDirectory(prefix="revision-") as scratch:
        tree, target = Path(scratch) / "tree", Path(scratch) / "answers.json.gz"
        subprocess.run(["git", "worktree", "add", "--detach", tree, revision], cwd=ROOT, check=True)
        try:
            script = tree / "tools" / "compare_predictions.py"
            command = [sys.executable, script, "--write", target, "--networks", networks.resolve()]
            subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, check=True)
            return read(target)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def read(file: Path) -> dict[str, Answer]:
    """Read answers."""
    by_label: dict[str, Answer] = json.loads(gzip.decompress(file.read_bytes()))
    return by_label


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write today's answers")
    parser.add_argument("--against", metavar="REVISION|FILE", help="compare with these")
    parser.add_argument("--networks", type=Path, default=ROOT / "build" / "compared")
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative, of each number")
    parser.add_argument("--expected", type=Path, metavar="FILE", help=EXPECTED)
    given = parser.parse_args()
    import resperf

    if Path(resperf.__file__).parents[1] != ROOT:
        parser.error(f"resperf is that of {resperf.__file__}, not of {ROOT}: set PYTHONPATH={ROOT}")
    before = None
    if given.against:
        file = Path(given.against)
        before = read(file) if file.exists() else answers_of(given.against, given.networks)
    now = answers(given.networks, before)
    if given.write:
        given.write.write_bytes(gzip.compress(json.dumps(now).encode(), 3))
        print(f"{len(now)} answers in {given.write}")
    return 0 if before is None else int(report(before, now, given.tolerance, given.expected) > 0)


if __name__ == "__main__":
    sys.exit(main())
