"""Predict networks on every device that is shipped or known, and list what is wrong or left out.

    python tools/benchmarks/export.py default build/networks
    python tools/check_networks.py build/networks models/networks --batch 1 --setting fp32 amp

Wrong is: an error, a total or a layer without a time, an interval that does not hold its value, a
document that is not JSON. What a prediction leaves out is counted by reason. Exits with 1 if
anything is wrong. Takes 2 to 15 seconds per network and setting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from resperf.errors import ResperfError
from resperf.network.files import network_files
from resperf.prediction import Prediction, predict_everywhere

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "amp": {"precision": "amp"},
    "fp16": {"precision": "fp16"},
    "compiled": {"precision": "amp", "compiled": True},
}
LACKED = (", which precision ", "no times with precision ")
"""In the messages of a device that lacks a precision, which is no fault."""
ROUNDING = 1e-9


def faults(prediction: Prediction) -> Iterator[str]:
    """Say what is wrong with a prediction."""
    values = {"total": (prediction.low_ms, prediction.total_ms, prediction.high_ms)}
    for layer in prediction.layers:
        values[f"layer {layer.name}"] = (layer.low_ms, layer.execution_ms, layer.high_ms)
    for group in (*prediction.parts.groups, *prediction.parts.classes):
        values[f"group {group.name}"] = (group.low, group.ms, group.high)
    for name, (low, value, high) in values.items():
        if not 0 <= value < float("inf") or (name == "total" and value == 0):
            yield f"{name}: {value} ms"
        elif low > value * (1 + ROUNDING) + ROUNDING or value > high * (1 + ROUNDING) + ROUNDING:
            yield f"{name}: {value} ms is outside its interval {low} to {high}"
    if not prediction.complete and not prediction.skipped:
        yield f"incomplete, without saying what is missing: {prediction.overheads.missing_costs}"
    try:
        json.dumps(prediction.to_json(), allow_nan=False)
    except ValueError as error:
        yield f"no JSON: {error}"


def checked(network: Path, settings: Sequence[str], batch: int) -> Iterator[tuple[str, str, str]]:
    """Yield kind ("prediction", "left out", "fault"), what was predicted, and a text."""
    for word in settings:
        try:
            predictions, failures = predict_everywhere(network, batch=batch, **SETTINGS[word])
        except ResperfError as error:
            yield "fault", f"{network.stem} {word}", str(error)
            continue
        for failure in failures:
            if not any(text in failure.error for text in LACKED):
                where = f"{network.stem} {word} {failure.device} {failure.framework}"
                yield "fault", where, failure.error
        for prediction in predictions:
            framework = prediction.subject.framework
            target = f"{prediction.subject.device} {framework}"
            where = f"{network.stem} {word} {target}"
            yield "prediction", where, target
            for text in faults(prediction):
                yield "fault", where, text
            for skipped in prediction.skipped:
                yield "left out", where, f"{framework}: {skipped.op}: {skipped.reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", type=Path, nargs="+", help="files and folders")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--setting", choices=SETTINGS, nargs="+", default=["fp32"])
    given = parser.parse_args()
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    files = network_files(given.networks)
    for network in files:
        for kind, where, text in checked(network, given.setting, given.batch):
            texts[kind][text] += 1
            if kind == "fault":
                print(f"{where}: {text}")
        print(network.stem, file=sys.stderr, flush=True)
    print(f"{len(files)} networks, {len(texts['prediction'])} devices and frameworks: "
          f"{texts['prediction'].total()} predictions, {texts['fault'].total()} faults, "
          f"{texts['left out'].total()} operators left out")  # fmt: skip
    for reason, count in texts["left out"].most_common():
        print(f"{count:8d}  {reason}")
    return int(bool(texts["fault"]))


if __name__ == "__main__":
    sys.exit(main())
