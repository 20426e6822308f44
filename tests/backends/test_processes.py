"""Processes that are started to measure end with the process that started them."""

from __future__ import annotations

import os
import subprocess

import pytest

from resperf.backends.processes import started


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_process_whose_parent_is_gone_ends(is_gone: bool) -> None:
    # As if it had ended before the new process could ask to end with it.
    parent = {"RESPERF_PARENT": "1" if is_gone else str(os.getpid())}
    process = started("no_such_module", stderr=subprocess.PIPE, env=parent)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (b"is gone" in text) == is_gone
    assert (b"no_such_module" in text) != is_gone
