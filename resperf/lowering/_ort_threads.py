"""Threads of ONNX Runtime's sessions in this process: a pool per session, or one for all."""

from __future__ import annotations

from typing import Any

import onnxruntime

_pool_threads: int | None = None


def share_threads(threads: int) -> None:
    """Make all later sessions of this process share one pool of threads.

    A session's own threads spin while they wait for its next run, and so take a core from another
    session that is being timed. ONNX Runtime creates the shared pool once per process and then
    refuses sessions with their own threads: call this only in processes that do nothing but
    measure.
    """
    global _pool_threads
    if _pool_threads is None:
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
        _pool_threads = threads


def set_threads(options: Any, threads: int) -> None:
    """Set the threads of one operator in a session's options; operators run one at a time.

    Where the process shares a pool, that pool's size applies instead.
    """
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    if _pool_threads is None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    else:
        options.use_per_session_threads = False
