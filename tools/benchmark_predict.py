"""How quickly `resperf predict` answers: cold starts, networks a second, and layers in one call.

    python tools/benchmark_predict.py --bundle demo/cpu-onnxruntime

Prints medians over fresh processes (interleaved, so that a busy moment meets all of them) and the
largest resident memory of each. Lowering is cached by `resperf` from the second run on; the first
run, with an empty cache, is shown separately.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

NETWORKS = Path(__file__).resolve().parents[1] / "models" / "networks"
BARE = [sys.executable, "-c", "import numpy, onnx, onnxruntime"]
RUNS = 7
BATCHES = (1, 2, 3, 4, 6, 8, 16)
LAYERS = 100_000


class Ended(NamedTuple):
    """What a process took, and what it wrote."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str


def ended(words: list[str], cache: Path) -> Ended:
    """Run a process with a cache folder of its own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    # An installed package has its bytecode, whatever this shell says.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as output:
        to = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1)]
        start = time.perf_counter()
        child = os.posix_spawn(words[0], words, environment, file_actions=to)
        _, status, usage = os.wait4(child, 0)
        wall_s = time.perf_counter() - start
        if status:
            raise SystemExit(f"failed: {' '.join(words)}")
        output.seek(0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return Ended(wall_s, cpu_s, usage.ru_maxrss / 1024, output.read().decode())


def embed_weights(source: Path, target: Path) -> None:
    """Write a network with all its weights inside the file."""
    from onnx import numpy_helper, save

    from resperf.network import materialise

    model, weights = materialise(source, batch=1)
    for initializer in model.graph.initializer:
        if initializer.name in weights:
            made = numpy_helper.from_array(weights[initializer.name], initializer.name)
            initializer.CopyFrom(made)
    save(model, target)


def cold_starts(bundle: Path, folder: Path) -> None:
    embedded = folder / "vgg16-embedded.onnx"
    # In a child, so that a gigabyte of weights does not stay in this process.
    child = os.fork()
    if child == 0:
        embed_weights(NETWORKS / "vgg16.onnx", embedded)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the weights could not be embedded")
    files = {"weightless": NETWORKS / "vgg16.onnx", "embedded": embedded}
    commands = {"bare imports": BARE} | {
        name: [
            sys.executable, "-m", "resperf.cli.main", "predict", str(path),
            "--bundle", str(bundle), "--batch", "1",
        ]
        for name, path in files.items()
    }  # fmt: skip
    cache = folder / "cache"
    first = {name: ended(words, cache).wall_s for name, words in commands.items()}
    runs: dict[str, list[Ended]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, words in commands.items():
            runs[name].append(ended(words, cache))
    bare_s = median(each.wall_s for each in runs["bare imports"])
    print(f"embedded file: {embedded.stat().st_size / 1e6:.0f} MB")
    print(f"{'process':<14} {'first s':>8} {'median s':>9} {'x bare':>7} {'peak MB':>8}")
    for name, taken in runs.items():
        seconds = median(each.wall_s for each in taken)
        peak = max(each.peak_mb for each in taken)
        print(f"{name:<14} {first[name]:8.3f} {seconds:9.3f} {seconds / bare_s:7.2f} {peak:8.0f}")


def throughput(bundle_path: Path, folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache-throughput")
    from resperf.bundle import Bundle
    from resperf.network import read_network
    from resperf.prediction import predict_network

    bundle = Bundle.load(bundle_path)
    asked = [(path, batch) for path in sorted(NETWORKS.glob("*.onnx")) for batch in BATCHES][:100]
    for label in ("lowering not cached", "lowering cached"):
        start = time.perf_counter()
        for path, batch in asked:
            predict_network(read_network(path, batch=batch), bundle)
        seconds = time.perf_counter() - start
        print(f"{len(asked)} networks in one process, {label}: {len(asked) / seconds:.1f} a second")


def second_batch(bundle: Path, files: list[Path], folder: Path) -> None:
    """Time a second batch size of a network in one process, after another network was predicted."""
    script = (
        "import sys, time, resperf\n"
        "times_s = []\n"
        f"for path, batch in (({str(NETWORKS / 'lenet5.onnx')!r}, 1), (sys.argv[1], 1), "
        "(sys.argv[1], 8)):\n"
        "    start = time.perf_counter()\n"
        f"    resperf.predict(path, bundle={str(bundle)!r}, batch=batch)\n"
        "    times_s.append(time.perf_counter() - start)\n"
        "print(*times_s[1:])"
    )
    print(f"{'network, nothing cached':<32} {'batch 1 s':>10} {'then 8 s':>9} {'ratio':>6}")
    for path in files:
        runs = []
        for turn in range(RUNS):
            words = [sys.executable, "-c", script, str(path.resolve())]
            output = ended(words, folder / f"cache-{path.stem}-{turn}").output
            runs.append([float(word) for word in output.split()])
        first_s, second_s = (median(each) for each in zip(*runs, strict=True))
        print(f"{path.stem:<32} {first_s:10.3f} {second_s:9.3f} {second_s / first_s:6.2f}")


def one_call(bundle_path: Path) -> None:
    """Predict 100,000 different layers in one call, which runs in one thread."""
    from resperf.bundle import Bundle
    from resperf.measurement import layer_and_optimizer

    bundle = Bundle.load(bundle_path)
    for kind in bundle.kinds:
        entry = next(
            each for each in bundle.part["golden"]["layers"] if each["key"].startswith(f"{kind}:")
        )
        width = "features_in" if "dense" in kind else "channels_in"
        layer, optimizer = layer_and_optimizer(entry["key"])
        if getattr(layer, "groups", 1) > 1:
            layer = layer.replace(groups=1)
        layers = [
            layer.replace(batch=1 + place % 64, **{width: 1 + place // 64})
            for place in range(LAYERS)
        ]
        optimizers = [optimizer] * LAYERS
        bundle.predict(layers[:100], bundle.layer_quantity, optimizers[:100])
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            bundle.predict(layers, bundle.layer_quantity, optimizers)
            seconds.append(time.perf_counter() - start)
        print(
            f"{LAYERS:,} layers in one call, {kind}, "
            f"{bundle.method_of(kind, bundle.own_quantity(kind))}: "
            f"{LAYERS / median(seconds):,.0f} a second"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="folder of a bundle")
    parser.add_argument(
        "--second-batch", type=Path, nargs="+", metavar="NETWORK.onnx",
        help="only time a second batch size of these networks",
    )  # fmt: skip
    given = parser.parse_args()
    bundle = given.bundle.resolve()
    with tempfile.TemporaryDirectory() as folder:
        if given.second_batch:
            second_batch(bundle, given.second_batch, Path(folder))
            return
        cold_starts(bundle, Path(folder))
        throughput(bundle, Path(folder))
    one_call(bundle)


if __name__ == "__main__":
    main()
