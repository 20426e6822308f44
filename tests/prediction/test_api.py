"""The Python API: reading networks, and when cached ones are read again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from resperf.errors import NetworkError
from resperf.prediction.api import read_batches

NETWORKS = Path(__file__).parents[2] / "models" / "networks"


def test_a_network_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    shutil.copy(NETWORKS / "lenet5.onnx", path)
    [first] = read_batches(path, 1)
    assert read_batches(path, 1)[0] is first
    assert [each.batch for each in read_batches(path, [1, 8])] == [1, 8]
    path.unlink()
    shutil.copy(NETWORKS / "alexnet.onnx", path)
    assert len(read_batches(path, 1)[0].nodes) != len(first.nodes)
    path.unlink()
    with pytest.raises(NetworkError, match="no file"):
        read_batches(path, 1)
