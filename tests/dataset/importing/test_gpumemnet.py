"""Importing GPUMemNet's table: rows that failed stay, and teach nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.dataset.importing import import_gpumemnet
from resperf.errors import DatasetError
from resperf.settings import Mode
from resperf.training.rows import network_examples

LENET = Path(__file__).parents[3] / "models" / "networks" / "lenet5.onnx"
TABLE = """model,batch,max_gpu_memory_mib,status
lenet5,8,1801,ok
lenet5,16,1805.5,ok
lenet5,32,40000,at_limit
lenet5,64,1700,failed
lenet5,x,1700,ok
other,8,1900,ok
"""


def test_rows_and_graphs(tmp_path: Path) -> None:
    table, output = tmp_path / "table.csv", tmp_path / "memory.h5"
    table.write_text(TABLE)
    (tmp_path / "lenet5.onnx").write_bytes(LENET.read_bytes())
    imported = import_gpumemnet([table], output, graphs=tmp_path)
    assert (imported.networks, imported.graphs) == (2, 1)
    assert {counted.what: counted.rows for counted in imported.marked}.items() >= {
        ("status at_limit", 1), ("status failed", 1),
    }  # fmt: skip
    assert [counted.rows for counted in imported.left_out] == [1]
    examples = network_examples(output, "process_memory_bytes")
    assert examples.values.tolist() == [1801 * 2**20, 1805.5 * 2**20]
    assert [setting.batch for setting in examples.settings] == [8, 16]
    assert [network.batch for network in examples.networks] == [8, 16]
    setting = examples.settings[0]
    assert (setting.mode, setting.optimizer) == (Mode.TRAINING, "momentum")
    assert examples.platforms[0].device == "a100-40gb"


def test_another_table_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("model,batch\nlenet5,8\n")
    with pytest.raises(DatasetError, match="max_gpu_memory_mib"):
        import_gpumemnet([table], tmp_path / "memory.h5")
