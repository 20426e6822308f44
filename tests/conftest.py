"""Every test has folders of its own: nothing reads or writes the user's home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# One thread is enough for small layers, and lets tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every folder that resperf looks into at an empty one."""
    root = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(root / "data"))
    monkeypatch.delenv("RESPERF_HOME", raising=False)
    return root
