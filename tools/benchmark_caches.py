"""What each cache saves, each taken away alone: starts of `resperf predict`, and repeated calls.

    python tools/benchmark_caches.py models/networks/resnet50.onnx models/networks/densenet121.onnx

Processes of all variants alternate, so that other work on the machine affects all of them alike.
Printed are medians of wall time (lowest to highest), of CPU time, and the median of the ratio to
the process of the same turn that has all caches. `first` starts with an empty cache folder, and
`none` with no disk cache at all; all others start with a filled one. With `--loop` one process
calls `resperf.predict` again and again instead.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmark_predict import Ended, ended

NO_NETWORKS = "import resperf.network as n; n.read_network_once = n.read_network"
NO_LOWERING = "import resperf.lowering._cache as c; c.once = lambda network, identity, make: make()"
NO_BLOCK = """
import resperf.lowering.onnxruntime as o
o.block_size = o.cache(lambda *, threads: o._ort_graph.block_size(threads=threads))
"""
DISKCACHE = """
import diskcache, platformdirs, contextlib
from functools import cache
from resperf import disk_cache
opened = cache(lambda what: diskcache.Cache(platformdirs.user_cache_dir("resperf") + "/dc/" + what))
disk_cache.load = lambda what, name: opened(what).get(name)
disk_cache.store = lambda what, name, value: opened(what).set(name, value)
"""
DISKCACHE_JSON = DISKCACHE.replace('/dc/" + what', '/dj/" + what, disk=diskcache.JSONDisk')
NO_CALLS = "import resperf.prediction.api as a; a._read = a._read.__wrapped__"
NO_ANSWERS = "import collections, resperf.lowering as l; l._answers = collections.deque(maxlen=0)"
NO_BUNDLE = "import resperf.bundle._search as s; s._loaded = s._loaded.__wrapped__"
NO_LABELS = "import resperf.bundle._search as s; s._read_label = s._read_label.__wrapped__"
NO_SHAPES = """
import resperf.network.shapes as s
class Nothing(dict):
    def __setitem__(self, key, value): pass
s._cache = Nothing()
"""
RULES = "import resperf.lowering.onnxruntime as o; o.too_large = lambda *_: 'forced'"
STARTS = {
    "all": "",
    "first": "",
    "none": NO_NETWORKS + "\n" + NO_LOWERING + "\n" + NO_BLOCK,
    "without networks": NO_NETWORKS,
    "without lowering": NO_LOWERING,
    "without block size": NO_BLOCK,
    "rules": RULES,
    "rules, without lowering": RULES + "\n" + NO_LOWERING,
    "diskcache": DISKCACHE,
    "diskcache, JSON": DISKCACHE_JSON,
    "without _answers": NO_ANSWERS,
    "without bundle labels": NO_LABELS,
    "first, without inferred nodes": NO_SHAPES,
}
LOOPS = {
    "all": "",
    "without api._read": NO_CALLS,
    "without _answers": NO_ANSWERS,
    "without loaded bundles": NO_BUNDLE,
    "without bundle labels": NO_LABELS,
}
LOOP = """
import sys, time, resperf
def call(): return resperf.predict(sys.argv[1], device="cpu", batch=1)
call()
taken = []
for _ in range(15):
    start = time.perf_counter(); call(); taken.append(time.perf_counter() - start)
print(sorted(taken)[7])
"""
MAIN = """
import sys
from resperf.cli.main import main
sys.argv = ["resperf", "predict", sys.argv[1], "--device", "cpu", "--batch", "1", "--json"]
main()
"""


def process(patch: str, body: str, network: Path, cache: Path) -> Ended:
    """Run a patched process."""
    words = [sys.executable, "-c", patch + "\n" + body, str(network)]
    return ended(words, cache)


def starts(network: Path, folder: Path, turns: int, variants: Mapping[str, str]) -> None:
    caches = {name: folder / name.replace(" ", "-") for name in variants}
    for name, patch in variants.items():
        process(patch, MAIN, network, caches[name])
    taken: dict[str, list[Ended]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, patch in variants.items():
            if name.startswith("first"):
                shutil.rmtree(caches[name])
            taken[name].append(process(patch, MAIN, network, caches[name]))
    print(f"\n{network.stem}, {turns} starts each\n")
    print("| variant | wall s | lowest to highest | ratio | CPU s | ratio |\n" + 6 * "|---" + "|")
    for name, each in taken.items():
        wall, cpu = ([row[i] for row in each] for i in (0, 1))
        ratios = [
            median(row[i] / base[i] for row, base in zip(each, taken["all"], strict=True))
            for i in (0, 1)
        ]
        print(
            f"| {name} | {median(wall):.3f} | {min(wall):.2f} to {max(wall):.2f} | {ratios[0]:.2f} "
            f"| {median(cpu):.3f} | {ratios[1]:.2f} |"
        )


def loops(network: Path, folder: Path, turns: int, variants: Mapping[str, str]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in variants}
    process("", MAIN, network, folder)
    for _ in range(turns):
        for name, patch in variants.items():
            taken[name].append(1e3 * float(process(patch, LOOP, network, folder).output))
    print(f"\n{network.stem}, median of 15 calls in a process, {turns} processes each\n")
    print("| variant | ms a call | lowest to highest | ratio |\n|---|---|---|---|")
    for name, each in taken.items():
        ratio = median(one / base for one, base in zip(each, taken["all"], strict=True))
        print(f"| {name} | {median(each):.1f} | {min(each):.1f} to {max(each):.1f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="these and `all`")
    parser.add_argument("--loop", action="store_true", help="repeated calls in one process")
    options = parser.parse_args()
    run, known = (loops, LOOPS) if options.loop else (starts, STARTS)
    variants = {k: v for k, v in known.items() if not options.only or k in ("all", *options.only)}
    for network in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            run(network, Path(folder), options.turns, variants)


if __name__ == "__main__":
    main()
