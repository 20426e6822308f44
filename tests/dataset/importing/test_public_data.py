"""The public timings themselves: how many rows there are, and some of them read by hand."""

from __future__ import annotations

import csv
import gzip
import math
import os
import time
from pathlib import Path
from statistics import median

import pytest

from resperf.dataset import (
    NetworkDescription,
    read_networks,
    read_table,
)
from resperf.dataset.importing import (
    import_dataset,
    import_neusight,
    import_timm,
    import_vidur,
    shipped_mapping,
)
from resperf.dataset.importing.importer import session_costs
from resperf.dataset.importing.rows import CountedRows, ForeignFile
from resperf.measurement import NetworkRef

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
    assert step.times_ms["step_ms"][first] == pytest.approx(3.42892 - 0.1459764)


@pytest.mark.parametrize("device", ["1080ti", "k80", "p100", "v100"])
def test_the_known_session_calls_are_those_of_the_whole_files(device: str) -> None:
    mapping = shipped_mapping("justus")
    assert mapping.session is not None
    left_out = CountedRows()
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
    assert all(row.median_ms > known[row.layer.kind] for row in rows)


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


def test_neusight_operators_of_the_p4(tmp_path: Path) -> None:
    folder = ROOT / "neusight" / "nvidia" / "Tesla-P4"
    names = ("train_linear", "test_linear", "test_bmm", "train_tanh", "test_elem", "train_conv")
    files = [folder / f"{name}.csv.gz" for name in names]
    imported = import_neusight(files, tmp_path / "p4.h5")
    assert imported.info.platform.device == "p4"
    assert imported.left_out == ()
    assert imported.rows["matmul"] == 31
    assert imported.rows["dense"] == 6423 + 485
    assert imported.rows["conv"] > 3900
    # The card was throttled during the training session of linear layers.
    assert [(each.what, each.rows) for each in imported.marked] == [("flagged throttled", 6423)]
    dense = read_table(tmp_path / "p4.h5")["dense"]
    flagged = dense.flags == "throttled"
    assert dense.setting[flagged].max() < dense.setting[~flagged].min()
    assert (dense.columns["features_out"] == 50272).any()


@pytest.mark.parametrize(
    ("device", "flags"),
    [
        ("Tesla_P4", {"bert_large-512": {"throttled"}, "gpt2_large-1024": {""}}),
        ("NVIDIA_A100-PCIE-40GB",
         {"bert_large-512": {"inconsistent"}, "gpt2_large-1024": {"inconsistent", ""}}),
        ("Tesla_V100-PCIE-32GB", {"bert_large-512": {""}, "gpt2_large-1024": {""}}),
    ],
)  # fmt: skip
def test_neusight_networks(tmp_path: Path, device: str, flags: dict[str, set[str]]) -> None:
    files = sorted((ROOT / "neusight" / "networks" / device).glob("*.gz"))
    imported = import_neusight(files, tmp_path / "n.h5")
    assert imported.rows == {"networks": len(files) // 2}
    dataset = read_networks(tmp_path / "n.h5")
    found: dict[str, set[str]] = {}
    for row in dataset.measurements:
        assert isinstance(row.subject, NetworkRef)
        found.setdefault(row.subject.name, set()).add(",".join(row.flags))
        described = NetworkDescription.from_bytes(dataset.descriptions[row.subject.description])
        counts = {each.op: each.count for each in described.operators}
        assert (counts["softmax"], counts["Embedding"]) in ((24, 1), (36, 1))
        assert described.batch == row.setting.batch
    assert found == flags


def test_neusight_of_amd_and_of_the_h100(tmp_path: Path) -> None:
    amd, nvidia = ROOT / "neusight" / "amd", ROOT / "neusight" / "nvidia"
    files = sorted((amd / "AMD-Instinct-MI210").glob("test_*.csv.gz"))
    imported = import_neusight(files, tmp_path / "a.h5")
    assert (imported.info.platform.device, imported.info.setting.provider) == ("mi210", "rocm")
    assert imported.rows == {"matmul": 1178, "dense": 516}
    files = sorted((nvidia / "NVIDIA-H100-80GB-HBM3").glob("*.csv.gz"))
    imported = import_neusight(files, tmp_path / "h.h5")
    assert (imported.info.platform.device, imported.marked) == ("h100", ())
    assert imported.rows == {"matmul": 1200, "dense": 516}


def _macs(network: NetworkDescription) -> float:
    """Count the multiply-accumulates of products and convolutions in a list, for one image."""
    found = 0
    for each in network.operators:
        shapes = [tensor.shape for tensor in each.inputs]
        if each.op in ("aten.mm", "aten.bmm"):
            found += each.count * math.prod(shapes[0]) * shapes[1][-1]
        elif each.op == "aten.addmm":
            found += each.count * math.prod(shapes[1]) * shapes[2][-1]
        elif each.op == "aten.convolution":
            taps = math.prod(shapes[1][1:])
            found += each.count * math.prod(each.outputs[0].shape) * taps
        elif each.op == "sdpa":
            found += each.count * 2 * math.prod(shapes[0]) * shapes[1][-2]
    assert network.batch
    return found / network.batch


def test_timm_eager_on_two_versions(tmp_path: Path) -> None:
    folder = ROOT / "timm"
    old = folder / "benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv.gz"
    new = folder / "benchmark-infer-amp-nchw-pt291-cu128-4090.csv.gz"
    imported = import_timm([old, new, folder / "operators.jsonl.gz"], tmp_path / "t.h5")
    assert imported.info.platform.device == "rtx4090"
    assert imported.rows == {"networks": 1190 + 1334}
    # Every row but one of each file has a list of operators.
    assert [(each.what, each.rows) for each in imported.marked] == [
        ("without a list of operators", 2)
    ]
    dataset = read_networks(tmp_path / "t.h5")
    known = {
        digest: NetworkDescription.from_bytes(content)
        for digest, content in dataset.descriptions.items()
    }
    merged = {"2.4.0": 0, "2.9.1": 0}
    for row in dataset.measurements:
        assert isinstance(row.subject, NetworkRef)
        merged[row.setting.framework_version] += known[row.subject.description].reparameterised
    # Version 2.9.1 measured networks with merged branches: all 108 that have any.
    assert merged == {"2.4.0": 0, "2.9.1": 108}
    listed = {each.name: each for each in known.values() if each.operators}
    assert {"repvgg_a0-224", "repvgg_a0-224-reparameterised"} <= set(listed)
    with gzip.open(old, "rt", encoding="utf-8") as file:
        gmacs = {
            f"{row['model']}-{row['infer_img_size']}": float(row["infer_gmacs"] or 0)
            for row in csv.DictReader(file)
        }
    apart = sorted(
        abs(_macs(network) / 1e9 / gmacs[name] - 1)
        for name, network in listed.items()
        if gmacs.get(name, 0) >= 1
    )
    assert len(apart) > 900
    assert median(apart) < 0.0045
    assert apart[int(0.9 * len(apart))] < 0.015


def test_timm_training_and_processors(tmp_path: Path) -> None:
    folder = ROOT / "timm"
    files = sorted(folder.glob("benchmark-train-*.csv.gz"))
    imported = import_timm(files, tmp_path / "t.h5")
    assert (imported.rows, imported.quantities) == ({"networks": 718 + 714}, ("step_ms",))
    files = sorted(folder.glob("*pt210*.csv.gz"))
    imported = import_timm(files, tmp_path / "g.h5")
    assert [(each.what, each.rows) for each in imported.marked] == [("without a time", 2)]
    files = sorted(folder.glob("*i7*.csv.gz"))
    imported = import_timm(files, tmp_path / "i.h5")
    assert imported.info.platform.device == "i7-12700h"
    assert (imported.info.setting.compiled, imported.rows) == ("dynamo", {"networks": 1188})


def test_vidur_of_the_a40(tmp_path: Path) -> None:
    folder = ROOT / "vidur"
    files = [folder / "compute__a40__microsoft__phi-2__mlp.csv.gz",
             folder / "network__a40_pairwise_nvlink__send_recv.csv.gz"]  # fmt: skip
    imported = import_vidur(files, tmp_path / "v.h5")
    assert imported.rows == {"dense": 4 * 261, "norm": 261, "activation": 261}
    assert {each.reason: each.rows for each in imported.left_out} == {
        "collectives between devices, which are no layers": 1988,
        "operators that are no layer of one kernel here": 3 * 261,
    }
    dense = read_table(tmp_path / "v.h5")["dense"]
    large = (dense.columns["batch"] == 4096) & (dense.columns["features_out"] == 10240)
    time_s = dense.times_ms["execution_ms"][large].min() / 1e3
    assert 110e12 < 2 * 4096 * 2560 * 10240 / time_s < 125e12  # TFLOP/s of the tensor cores
