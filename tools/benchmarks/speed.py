"""How quickly predictions come: cold starts, and networks a second.

    python tools/benchmarks/speed.py starts cpu-onnxruntime     # first time ever, then medians
    python tools/benchmarks/speed.py many cpu --count 150       # predict_many, and one by one

Starts are fresh processes, interleaved so that a busy moment meets all of them. Lowering is cached
by `resperf` from the second run on; the first run, with an empty cache, is shown separately.
Candidates are those of an architecture search, no two alike; their process is warm.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from timeit import timeit

import numpy as np
from onnx import ModelProto, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from build import Builder
from pages import ROOT, parser_of

from resperf.report.tables import table

NETWORKS = ROOT / "models" / "networks"
BARE = [sys.executable, "-c", "import numpy, onnx, onnxruntime"]
RUNS = 7
NODES = 60
"""Of a candidate of `many`."""
WARM = 30


def timed(words: list[str], cache: Path) -> tuple[float, float]:
    """Run a process with a cache folder of its own; return its seconds and peak memory in MB."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    # An installed package has its bytecode, whatever this shell says.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    start = time.perf_counter()
    child = os.posix_spawn(words[0], words, environment, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(words)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def cold_starts(bundle: str, folder: Path) -> None:
    """Time `resperf predict` of VGG16 beside the imports that it needs."""
    words = ["predict", str(NETWORKS / "vgg16.onnx"), "--bundle", bundle, "--batch", "1"]
    commands = {"bare imports": BARE, "predict": [sys.executable, "-m", "resperf.cli.main", *words]}
    cache = folder / "cache"
    first = {name: timed(words, cache)[0] for name, words in commands.items()}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, words in commands.items():
            runs[name].append(timed(words, cache))
    medians = {name: median(seconds for seconds, _ in taken) for name, taken in runs.items()}
    cells = [
        [name, f"{first[name]:.3f}", f"{seconds:.3f}", f"{seconds / medians['bare imports']:.2f}",
         f"{max(peak_mb for _, peak_mb in runs[name]):.0f}"]
        for name, seconds in medians.items()
    ]  # fmt: skip
    print(table(("process", "first s", "median s", "x bare", "peak MB"), cells, text=("process",)))


def candidate(seed: int) -> ModelProto:
    """Make a network of mobile and residual blocks, with its weights."""
    draw = random.Random(seed)
    net = Builder(3, 96, 96).conv(8 * draw.randint(2, 6), 3, 2, 1).relu()
    while len(net.nodes) < NODES - 4:
        start, channels, count = net.at, net.shape[0], len(net.nodes)
        stride = 2 if count in range(15, 22) or count in range(35, 42) else 1
        out = channels if stride == 1 else channels + 8 * draw.randint(1, 8)
        kernel, wide = draw.choice((3, 5, 7)), channels * draw.randint(2, 6)
        if draw.random() < 0.6:
            net.conv(wide, 1).relu6().conv(wide, kernel, stride, kernel // 2, groups=wide).relu6()
            net.conv(out, 1)
        else:
            net.conv(out, 3, stride, 1).relu().conv(out, 3, 1, 1)
        (net.add(start) if stride == 1 else net).relu()
    net.average().flatten().dense(10 * draw.randint(1, 100))
    model = net.model(f"candidate_{seed}")
    for tensor in model.graph.initializer:
        if tensor.external_data:
            tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    return model


def rates(count: int, device: str) -> dict[str, float]:
    """Return networks per second of each way to predict the candidates."""
    from resperf import predict, predict_many

    models = [candidate(seed) for seed in range(count)]
    predict_many([candidate(count + seed) for seed in range(WARM)], device=device)
    ways: dict[str, Callable[[], object]] = {
        "predict_many, never seen": lambda: predict_many(models, device=device),
        "predict_many, seen before": lambda: predict_many(models, device=device),
        "predict each, seen before": lambda: [predict(model, device=device) for model in models],
    }
    return {way: count / timeit(predictions, number=1) for way, predictions in ways.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("starts", "many"))
    parser.add_argument("word", help="a bundle, or of `many` a device")
    parser.add_argument("--count", type=int, default=150, help="candidates (at most 220)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "own-cache")
        if given.what == "starts":
            cold_starts(given.word, Path(folder))
        else:
            for way, rate in rates(given.count, given.word).items():
                print(f"{way}: {rate:.0f} networks a second")


if __name__ == "__main__":
    main()
