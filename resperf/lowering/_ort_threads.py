"""Threads of ONNX Runtime's sessions in this process: each its own, or one pool for all."""

from __future__ import annotations

from typing import Any

import onnxruntime

_pool_threads: int | None = None


def share_threads(threads: int) -> None:
    """Make all later sessions of this process share one pool of threads.

    A session's own threads wait for its next run by spinning, so that those of a session that has
    just run take a core from the one that is timed. ONNX Runtime makes the pool once per process,
    and afterwards refuses sessions with threads of their own: this is for processes that do
    nothing but measure.
    """
    global _pool_threads
    if _pool_threads is None:
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
        _pool_threads = threads


def set_threads(options: Any, threads: int) -> None:
    """Say in a session's options how many threads work inside an operator; one operator at a time.

    Where the process shares a pool, that pool's size counts.
    """
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    if _pool_threads is None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    else:
        options.use_per_session_threads = False
