"""Tables of distributed training on a small file."""

from __future__ import annotations

import numpy as np
import pytest

from resperf.dataset.importing import import_batchai
from resperf.predictors.exchange_fit import GroupStep


@pytest.fixture
def distributed(load_tool):
    return load_tool("benchmarks/distributed")


@pytest.fixture
def batchai(tmp_path):
    """Write rates of three networks; two devices pay 10%, each doubling 5% more."""
    lines = ["source,gpu,network,gpus,library,images_per_s,framework"]
    for network, rate in (("resnet50", 200), ("resnet50_v2", 190), ("resnet101", 110)):
        lines.append(f"S,p40,{network},1,Single GPU,{rate},tensorflow")
        for count in (1, 2, 4, 8, 16, 32):
            slower = 1.05 + 0.05 * np.log2(count)
            lines.append(f"S,p40,{network},{count},IntelMPI,{count * rate / slower},tensorflow")
    path = tmp_path / "horovod.csv"
    path.write_text("\n".join(lines) + "\n")
    import_batchai([path], tmp_path / "b.h5")
    return tmp_path / "b.h5"


def test_rows_have_the_step_of_one_device(distributed, batchai):
    [(name, rows)] = distributed.clusters(batchai).items()
    assert (name, len(rows)) == ("p40-infiniband-mpi", 15)
    [row] = [row for row in rows if row.network == "resnet50" and row.devices == 8]
    exact = GroupStep("resnet50", "resnet", 64, 4 * 25_557_032, 8, 2, 4, 0.32, 0.32 * 1.2)
    assert row[:3] == exact[:3]
    assert row[3:] == pytest.approx(exact[3:])
    assert {row.family for row in rows} == {"resnet", "resnet_v2"}


def test_tables_come_in_order_and_say_what_was_judged(distributed, batchai, tmp_path):
    page = tmp_path / "page.md"
    distributed.main([str(batchai), "--output", str(page)])
    cells = [
        line.split(" | ") for line in page.read_text().splitlines() if " | composed | " in line
    ]
    titles = [row[0].removeprefix("| ") for row in cells]
    assert titles == ["family out", "network out", "fitted to 8 devices or fewer", "rows 50%",
                      "rows 67%", "rows 80%"]  # fmt: skip
    judged = [int(row[2]) for row in cells]
    assert judged[:3] == [15, 15, 6]
    assert judged[3:] == [5 * 7, 5 * 5, 5 * 3]
    errors = [float(row[3].rstrip("%")) for row in cells]
    assert max(errors[:2]) < 5
    alone = [
        line for line in page.read_text().splitlines() if "| network out | one device |" in line
    ]
    # 1 - 1 / slower over 2 to 32 devices.
    exact = 100 * np.mean([1 - 1 / (1.05 + 0.05 * power) for power in range(1, 6)])
    assert float(alone[0].split(" | ")[3].rstrip("%")) == pytest.approx(exact, abs=0.06)
    assert "| network out | ernest | 15 |  |" in page.read_text()
