"""What processes that are started to measure have in common.

``python -m resperf.backends.processes MODULE WORD...`` calls the `main` of a module in a process
that ends with its parent, also while the module is still being imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, even while it hangs."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def python_path() -> str:
    """Return PYTHONPATH with the folder of this package first."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    die_with_parent()
    importlib.import_module(sys.argv[1]).main(*sys.argv[2:])
