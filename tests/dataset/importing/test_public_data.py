"""The public timings themselves: how many rows there are, and some of them read by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from resperf.dataset import import_dataset, read_table, shipped_mapping
from resperf.dataset.importing.rows import ForeignFile, LeftOutRows
from resperf.dataset.importing.session import session_costs

ROOT = Path(os.environ.get("RESPERF_PUBLIC_DATA", Path(__file__).parents[4] / "shared" / "data"))
pytestmark = pytest.mark.skipif(
    not ROOT.is_dir(), reason=f"no public data in {ROOT}; set RESPERF_PUBLIC_DATA"
)


def test_justus_1080ti(tmp_path: Path) -> None:
    folder = ROOT / "justus"
    files = [folder / f"1080ti_{kind}.csv.gz" for kind in ("convolution", "dense")]
    started = time.perf_counter()
    imported = import_dataset(
        files, tmp_path / "j.h5", mapping=shipped_mapping("justus"), device="1080ti"
    )
    assert time.perf_counter() - started < 60  # some seconds on an idle machine
    assert imported.left_out == ()
    assert imported.rows == {
        "conv": 9898, "conv_step": 10148, "dense": 9984, "dense_step": 10062,
    }  # fmt: skip
    tables = read_table(tmp_path / "j.h5")
    # Line 4: a forward pass of 0.240259 ms, VALID, sigmoid.
    conv = tables["conv"]
    first = conv.isolated_ms.tolist().index(0.240259)
    fields = {name: column[first].item() for name, column in conv.columns.items()}
    assert (fields["batch"], fields["channels_in"], fields["channels_out"]) == (1, 21, 22)
    assert (fields["height"], fields["kernel_width"], fields["pad_top"]) == (32, 4, 0)
    assert (fields["activation"], fields["bias"]) == ("sigmoid", True)
    # Line 2: a training step by RMSProp, VALID.
    step = tables["conv_step"]
    first = step.isolated_ms.tolist().index(3.42892)
    assert step.columns["optimizer"][first] == "rmsprop"
    assert step.times_ms["execution_ms"][first] == pytest.approx(3.42892 - 0.1459764)


@pytest.mark.parametrize("device", ["1080ti", "k80", "p100", "v100"])
def test_the_known_session_calls_are_those_of_the_whole_files(device: str) -> None:
    mapping = shipped_mapping("justus")
    assert mapping.session is not None
    left_out = LeftOutRows()
    rows = [
        row
        for kind in ("convolution", "dense")
        for row in ForeignFile.read(ROOT / "justus" / f"{device}_{kind}.csv.gz").rows(
            mapping, left_out
        )
    ]
    assert left_out.all() == ()
    estimated = session_costs(rows, mapping.session, "an unknown device")
    known = session_costs(rows, mapping.session, device)
    assert known == pytest.approx(dict(estimated), rel=1e-6)
    assert all(row.median_ms("execution_ms") > known[row.layer.kind] for row in rows)


def test_perfnet_p5000(tmp_path: Path) -> None:
    folder = ROOT / "perfnet"
    files = [folder / f"p5000_{kind}.csv.gz" for kind in ("convolution", "pooling", "dense")]
    imported = import_dataset(
        files, tmp_path / "p.h5", mapping=shipped_mapping("perfnet"), device="p5000"
    )
    assert imported.left_out == ()
    assert imported.rows == {"conv": 20000, "pool": 20000, "dense": 20000}
    pool = read_table(tmp_path / "p.h5")["pool"]
    # The first line: batch 15, 98 x 98 x 57, windows of 5 in steps of 3, VALID, 0.884295 ms.
    assert pool.times_ms["whole_call_ms"][0] == 0.884295
    assert pool.key[0].startswith("pool:batch=15,channels_in=57,height=98,width=98,kernel_height=5")
    assert pool.columns["stride_width"][0] == 3
    assert pool.columns["pad_bottom"][0] == 0
