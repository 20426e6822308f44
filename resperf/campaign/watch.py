"""What watches the machine while something is measured: a reference layer and two probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from resperf.backends import Backend, Built
from resperf.errors import UnsupportedError
from resperf.layers import Conv, Layer, Pool
from resperf.timing import SLOW, Clock, Probe

REFERENCE = Conv(
    batch=1, channels_in=64, channels_out=64, height=56, width=56, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
"""About a millisecond on two cores: long enough to time, short enough to time often."""

MEMORY = Pool(
    batch=1, channels_in=64, height=204, width=204, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
"""A layer that reads and writes 20 MB."""

_SIDE = 512
_ROUNDS = 2


def built_reference(backend: Backend) -> Built:
    """Build the reference layer.

    Raises
    ------
    UnsupportedError
        If the framework cannot run it.
    """
    return _built(backend, REFERENCE)


def _built(backend: Backend, layer: Layer) -> Built:
    return backend.layer(backend.lower([layer])[0], budget_ms=1.0)


def probe_cost(name: str) -> str:
    """Return the word under which a dataset's machine costs hold a probe's usual time."""
    return f"{name}_probe_ms"


def _built_memory(backend: Backend) -> Built:
    return _built(backend, MEMORY)


def _built_caches(backend: Backend) -> Built:
    """Build a network through which megabytes go from one core to the other and back.

    ONNX Runtime shares a Relu among all cores, and leaves Concat to one of them. While the host
    keeps two cores under one last cache, a run takes 0.09 ms; while it keeps them under two,
    0.17 ms, and a whole network of small layers 1.8 times its usual time. No layer that is run
    alone, again and again, shows that: each core finds what it wrote itself.
    """
    from onnx import TensorProto, helper, save

    nodes = []
    for turn in range(_ROUNDS):
        nodes += [
            helper.make_node("Relu", [f"x{turn}"], [f"relu{turn}"]),
            helper.make_node("Concat", [f"relu{turn}", "x0"], [f"x{turn + 1}"], axis=1),
        ]
    widths = {"x0": _SIDE, f"x{_ROUNDS}": (_ROUNDS + 1) * _SIDE}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [_SIDE, width])
        for name, width in widths.items()
    ]
    graph = helper.make_graph(nodes, "caches", ends[:1], ends[1:])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "caches.onnx"
        opsets = [helper.make_opsetid("", 17)]
        save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return backend.network(path, batch=None)


PROBES: Mapping[str, Callable[[Backend], Built]] = {
    "caches": _built_caches,
    "memory": _built_memory,
}
"""What is slow -> what shows it, in the order in which they are timed: cores that are far apart
have more bandwidth to memory, so that the second tells nothing while the first is slow."""


@contextmanager
def built_probes(
    backend: Backend,
    clock: Clock,
    usual: Mapping[str, tuple[float, int]] | None = None,
    slow: Mapping[str, float] | None = None,
) -> Iterator[Mapping[str, Probe]]:
    """Build the probes: none on a simulated device, which nothing disturbs.

    Parameters
    ----------
    backend : Backend
    clock : callable
        Nanoseconds.
    usual : mapping of str to (float, int), optional
        What the probes usually take and how many checks that is of, by `probe_cost`.
    slow : mapping of str to float, optional
        Times its usual time at which a probe is slow, where that is not `resperf.timing.SLOW`.
    """
    probes = {}
    with ExitStack() as stack:
        for name, build in PROBES.items() if not hasattr(backend, "clock") else ():
            try:
                built = build(backend)
            except UnsupportedError:
                continue
            usual_ms, readings = (usual or {}).get(probe_cost(name), (None, 0))
            probes[name] = Probe(
                # One run: what the execution phase holds several copies of may hold others later.
                stack.enter_context(built).isolated,
                clock=clock,
                slow=(slow or {}).get(name, SLOW),
                usual_ms=usual_ms,
                readings=readings,
            )
        yield probes
