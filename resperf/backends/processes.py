"""What processes that are started to measure have in common.

``python -m resperf.backends.processes MODULE WORD...`` calls the `main` of a module in a process
that ends with its parent, also while the module is still being imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = "resperf.backends.processes"
_PARENT = "RESPERF_PARENT"
"""Variable with the process that starts one of these."""


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed, even while it hangs."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
            sys.exit("the process that started this one is gone")


def started(module: str, *words: str, stderr: Any, **options: Any) -> subprocess.Popen[bytes]:
    """Start the `main` of a module, which writes to stderr alone, in a process of its own.

    `options` are those of `subprocess.Popen`; ``env`` is added to this process's environment.
    """
    return subprocess.Popen(
        [sys.executable, "-m", RUN, module, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        **{**options, "env": environment(**options.get("env", {}))},
    )


def environment(**added: str) -> dict[str, str]:
    """Return this process's environment, in which others find this package, and what is added."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, _PARENT: str(os.getpid()), **added}


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for the end of a process, and kill it if it takes longer."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    die_with_parent()
    os.environ[_PARENT] = str(os.getpid())  # of what torchrun starts, likewise
    importlib.import_module(sys.argv[1]).main(*sys.argv[2:])
