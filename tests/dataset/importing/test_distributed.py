"""Steps of distributed training: each source's traps, on rows written here and on the files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from resperf.dataset import read_dataset
from resperf.dataset.importing import import_batchai, import_gavel, import_pollux
from resperf.dataset.importing.distributed import PLACEMENT
from resperf.errors import DatasetError

ROOT = Path(os.environ.get("RESPERF_PUBLIC_DATA", Path(__file__).parents[4] / "shared" / "data"))


def rows_of(path: Path) -> list[tuple]:
    """Return network, batch, placement, what is shared, and step in ms of each row."""
    return [
        (row.subject.name, row.setting.batch, row.setting.options[PLACEMENT], row.platform.devices,
         row.platform.interconnect, round(row.samples["step_ms"].value, 6))
        for row in read_dataset(path).measurements
    ]  # fmt: skip


def test_pollux_says_which_devices_a_node_has(tmp_path):
    path, out = tmp_path / "imagenet.placements.csv", tmp_path / "p.h5"
    path.write_text("placement,local_bsz,step_time,sync_time\n1,20,0.1,0.01\n42,20,0.25,0.2\n"
                    "42,20,0.27,0.2\n0,20,0.1,0.1\n")  # fmt: skip
    more = tmp_path / "ncf.scalability.csv"
    more.write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n3,8,32,0.02,0.01\n")
    imported = import_pollux([path, more], out)
    # The step contains what of the exchange was not hidden: nothing is added or taken away.
    assert rows_of(out) == [
        ("resnet50-224", 20, "1", 1, "", 100.0),
        ("resnet50-224", 20, "4+2", 6, "NCCL over Ethernet on 2 hosts", 250.0),
        ("resnet50-224", 20, "4+2", 6, "NCCL over Ethernet on 2 hosts", 270.0),
        ("neumf", 32, "3+3+2", 8, "NCCL over Ethernet on 3 hosts", 20.0),
    ]  # fmt: skip
    assert [row.repeat for row in read_dataset(out).measurements] == [0, 0, 1, 0]
    assert [each.rows for each in imported.left_out] == [1]
    wrong = tmp_path / "other.csv"
    wrong.write_text("placement,local_bsz,step_time\n1,20,0.1\n")
    with pytest.raises(DatasetError, match=r"nothing to import.*is no file of Pollux"):
        import_pollux([wrong], out)
    wrong.write_text("placement,local_bsz\n1,20\n")
    with pytest.raises(DatasetError, match="step_time"):
        import_pollux([wrong], out)


def test_rates_of_batch_ai_are_of_all_gpus(tmp_path):
    path, out = tmp_path / "horovod.csv", tmp_path / "b.h5"
    path.write_text("source,gpu,network,gpus,library,images_per_s,framework\n"
                    "S,p40,resnet50_v2,1,Single GPU,64,tensorflow\n"
                    "S,p40,resnet50_v2,6,IntelMPI,192,tensorflow\n")  # fmt: skip
    import_batchai([path], out)
    assert rows_of(out) == [
        ("resnet50_v2-224", 64, "1", 1, "", 1000.0),
        ("resnet50_v2-224", 64, "4+2", 6, "IntelMPI on 2 hosts", 2000.0),
    ]
    assert {row.platform.device for row in read_dataset(out).measurements} == {"p40"}


def test_rates_of_gavel_are_added_up_over_workers(tmp_path):
    path, out = tmp_path / "p100.csv", tmp_path / "g.h5"
    path.write_text("gpu,placement,job,workers,steps_per_s\n"
                    "p100,consolidated,ResNet-18 (batch size 16),1,20\n"
                    "p100,consolidated,ResNet-18 (batch size 16),4,40\n"
                    "p100,unconsolidated,ResNet-18 (batch size 16),1,20\n"
                    "p100,unconsolidated,A3C,2,10\n")  # fmt: skip
    imported = import_gavel([path], out)
    assert rows_of(out) == [
        ("resnet18-32", 16, "1", 1, "", 50.0),
        ("resnet18-32", 16, "4", 4, "consolidated on 1 host", 100.0),
        ("A3C", None, "1+1", 2, "unconsolidated on 2 hosts", 200.0),
    ]
    assert {each.reason: each.rows for each in imported.left_out} == {
        "one device, which other rows have": 1
    }


@pytest.mark.skipif(
    not (ROOT / "pollux").is_dir(), reason=f"no public data in {ROOT}; set RESPERF_PUBLIC_DATA"
)
def test_the_published_files(tmp_path):
    """Rows by section 3 of the notes on the data: 7,103, 210, and 166 of which 26 come twice."""
    out = tmp_path / "p.h5"
    assert import_pollux(sorted((ROOT / "pollux").glob("*.gz")), out).rows == {"networks": 7103}
    rows = rows_of(out)
    assert len({(place, shared) for _, _, place, _, shared, _ in rows}) > 108
    assert max(devices for *_, devices, _, _ in rows) == 64
    alone = {row[1]: row[-1] for row in rows if row[0] == "yolov3" and row[3] == 1}
    assert [round(alone[batch]) for batch in (4, 6, 8)] == [267, 451, 326]  # not monotone
    assert import_batchai([ROOT / "batchai" / "horovod.csv"], out).rows == {"networks": 210}
    counts = Counter(devices for *_, devices, _, _ in rows_of(out))
    assert set(counts) == {1, 2, 3, 4, 8, 16, 32}
    imported = import_gavel([ROOT / "gavel" / "p100.csv"], out)
    assert (imported.rows, imported.left_out[0].rows) == ({"networks": 140}, 26)
    assert imported.networks == 7
