"""Processes that end with the one that started them."""

from __future__ import annotations

import contextlib
import signal


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, even while it hangs."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
