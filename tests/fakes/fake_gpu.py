"""A GPU that is a clock: everything on its one stream advances it by closed forms."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

COPY_MS, BYTES_PER_MS = 0.01, 1e7
ENQUEUE_MS = 0.004
"""Of an engine without layers."""
RELAYOUT_MS = 0.002
TRANSIENT_BYTES = 1 << 16
"""Memory of an execution context."""


@dataclass
class Gpu:
    """State of the GPU, and what a test wants of it.

    Attributes
    ----------
    now_ms : float
        Its clock.
    devices : int
    memory_bytes : int
    noise : float
        How much kernels of one layer differ: each time that they are timed, another one is best.
    relayouts : bool
        Whether every convolution needs a re-layout of its input.
    aux_streams : int
        What engines use although nobody allowed it.
    hides : frozenset of str
        Operators that are computed during the build.
    refusal : str
        Why TensorRT does not run on this GPU.
    """

    now_ms: float = 0.0
    devices: int = 1
    memory_bytes: int = 1 << 31
    noise: float = 0.0
    relayouts: bool = False
    aux_streams: int = 0
    hides: frozenset[str] = frozenset()
    refusal: str = ""
    tries: int = 0
    builds: int = 0
    device: dict[int, int] = field(default_factory=dict)
    host: dict[int, ctypes.Array[ctypes.c_char]] = field(default_factory=dict)
    contexts: int = 0
    _next: int = 1 << 40

    @property
    def used_bytes(self) -> int:
        """Device memory in use."""
        return sum(self.device.values()) + self.contexts * TRANSIENT_BYTES

    def allocate(self, size: int) -> int | None:
        """Return an address, None if the memory is full."""
        if self.used_bytes + size > self.memory_bytes:
            return None
        address, self._next = self._next, self._next + -(-size // 256) * 256
        self.device[address] = size
        return address

    def allocate_host(self, size: int) -> int:
        """Return the address of real memory."""
        block = ctypes.create_string_buffer(size)
        self.host[ctypes.addressof(block)] = block
        return ctypes.addressof(block)


gpu = Gpu()


def reset() -> Gpu:
    """Begin with an empty GPU."""
    gpu.__init__()  # type: ignore[misc]
    return gpu
