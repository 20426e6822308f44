"""What watches the machine while something is measured: a reference layer and two probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from resperf.backends import Backend, Built
from resperf.errors import UnsupportedError
from resperf.layers import Conv, Layer, Pool
from resperf.timing import Clock, Probe

REFERENCE = Conv(
    batch=1, channels_in=64, channels_out=64, height=56, width=56, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
"""About a millisecond on two cores: long enough to time, short enough to time often."""

PROBES: Mapping[str, Layer] = {
    "cores": Pool(
        batch=1, channels_in=64, height=28, width=28, kernel_height=2, kernel_width=2,
        stride_height=2, stride_width=2,
    ),
    "memory": Pool(
        batch=1, channels_in=64, height=204, width=204, kernel_height=3, kernel_width=3,
        pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
    ),
}  # fmt: skip
"""What is slow -> layer that shows it: microseconds on several cores, and 20 MB that are read and
written."""


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


@contextmanager
def built_probes(
    backend: Backend, clock: Clock, costs: Mapping[str, float] | None = None
) -> Iterator[Mapping[str, Probe]]:
    """Build the probes' layers: none on a simulated device, which nothing disturbs.

    Parameters
    ----------
    backend : Backend
    clock : callable
        Nanoseconds.
    costs : mapping of str to float, optional
        Machine costs of an earlier campaign, whose usual times count then.
    """
    probes = {}
    with ExitStack() as stack:
        for name, layer in PROBES.items() if not hasattr(backend, "clock") else ():
            try:
                built = _built(backend, layer)
            except UnsupportedError:
                continue
            probes[name] = Probe(
                stack.enter_context(built).phases["execution"].run,
                clock=clock,
                usual_ms=(costs or {}).get(probe_cost(name)),
            )
        yield probes
