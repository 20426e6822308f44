"""A campaign for a GPU machine without Python; stand-ins of trtexec and nvidia-smi run it."""

import gzip
import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from resperf.campaign import Bench, Campaign, plan_campaign
from resperf.campaign.trtexec import read_results, write_folder
from resperf.campaign.trtexec._models import BLOCK_BYTES, SharedWeights, copies_in
from resperf.campaign.trtexec._read import check_copies
from resperf.dataset import read_dataset
from resperf.dataset.importing.trtexec import Engine, EngineLayer, EngineTensor
from resperf.errors import CampaignError, DatasetError, OutputError, UnsupportedError
from resperf.layers import Conv, Dense, Layer
from resperf.measurement import Measurement, Status
from resperf.targets import target

FAKES = Path(__file__).parents[1] / "fakes" / "trtexec"
TABLE: dict[str, Any] = {
    "name": "tiny",
    "samples": 5,
    "seed": 4,
    "repeat_share": 0.0,
    "constraints": {"gflops": 5000.0, "gb_per_s": 250.0},
    "kinds": {
        "dense": {"batch": [1, 4], "features_in": {"law": "uniform", "low": 8, "high": 400},
                  "features_out": {"law": "uniform", "low": 8, "high": 400}, "bias": True,
                  "activation": "relu"},
        "conv": {"batch": [1, 2], "channels_in": [3, 8], "channels_out": [8, 16],
                 "size": {"law": "uniform", "low": 8, "high": 32}, "kernel": 3, "stride": 1,
                 "dilation": 1, "groups": 1, "padding": "same", "bias": True,
                 "activation": "relu", "residual": False},
    },
}  # fmt: skip


def made(**changes: Any) -> Campaign:
    return Campaign.from_mapping({**TABLE, **changes})


def write(campaign: Campaign, folder: Path, **settings: Any) -> Any:
    planned, *_ = plan_campaign(campaign, Bench(target("tensorrt")), absent=True)
    return write_folder(
        campaign, planned, folder, seed=campaign.seed, settings=settings, hours=campaign.run.hours
    )


class GpuMachine:
    """Has sh, a stand-in of trtexec and one of nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        trtexec = self.bin / "trtexec"
        trtexec.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES / "trtexec.py"} "$@"\n')
        shutil.copy(FAKES / "nvidia-smi", self.bin)
        for path in self.bin.iterdir():
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, folder: Path, **words: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **words}
        return subprocess.run(
            ["sh", str(folder / "run.sh")], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> GpuMachine:
    return GpuMachine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, machine: GpuMachine) -> Path:
    """The folder of the campaign, with all results; one failed, of one two copies were merged."""
    folder = tmp_path_factory.mktemp("measured") / "tiny-trtexec"
    write(made(), folder)
    ended = machine.start(
        folder, STANDIN_FAIL="00001-many", STANDIN_MERGE="00003-many", STANDIN_REASONS="0x4"
    )
    assert ended.returncode == 0, ended.stderr
    assert "measured 4 now, 1 failed, 0 are left" in ended.stdout
    return folder


@pytest.fixture
def results(measured: Path, tmp_path: Path) -> Path:
    """A copy of what came back from the GPU machine."""
    return Path(shutil.copytree(measured / "results", tmp_path / "results"))


def values_of(layer: Layer) -> int:
    return (layer.input_bytes + layer.output_bytes) // 4


def rows_of(output: Path) -> list[Measurement]:
    return list(read_dataset(output).measurements)


def test_marginal_times_are_recovered(measured: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.h5"
    result = read_results(made(), measured, output)
    assert (result.reason, result.rows, result.statuses) == (
        "complete", 5, {"ok": 3, "unsupported": 2},
    )  # fmt: skip
    assert not list(tmp_path.glob("*.jsonl"))
    rows = rows_of(output)
    for row in rows:
        if row.status is Status.OK:
            # The stand-in's formulas (tests/fakes/trtexec/trtexec.py); re-layouts do not count.
            execution_ms = 0.005 + 1e-6 * values_of(row.layer)
            relayout_ms = 0.002 if isinstance(row.layer, Conv) else 0.0
            assert row.value("execution_ms") == pytest.approx(execution_ms, rel=1e-6)
            assert row.isolated_ms == pytest.approx(0.003 + relayout_ms + execution_ms)
            assert row.value("preprocess_ms") == pytest.approx(1e-7 * row.layer.input_bytes)
            assert row.value("postprocess_ms") == pytest.approx(1e-7 * row.layer.output_bytes)
            assert row.value("profiled_ms") == pytest.approx(1.2 * execution_ms)
            assert row.value("relayout_ms") == pytest.approx(1.2 * relayout_ms)
            copies = row.samples["execution_ms"].copies
            assert copies == 16
            assert row.samples["execution_ms"].divisor == 15
    failed, merged = [row for row in rows if row.status is not Status.OK]
    assert "Could not find any implementation" in failed.detail
    assert merged.detail.startswith("TensorRT merged copies 0, 1 into one layer")
    info = read_dataset(output).info
    assert (info.setting.framework, info.setting.framework_version) == ("tensorrt", "10.5.0")
    assert (info.setting.precision, info.platform.device) == ("fp32", "a100-80gb")
    card = info.platform.accelerators[0]
    assert (card.memory_bytes, card.driver, card.clock_mhz) == (80 << 30, "570.86.15", 1410)
    # A conv of 64 channels and 56 x 56 pixels, read and written.
    reference_ms = 0.005 + 1e-6 * 2 * 64 * 56 * 56
    assert info.machine_costs["reference_ms"] == pytest.approx(reference_ms)
    assert info.machine_costs["temperature_c"] == 41


def test_reading_again_adds_what_is_new(results: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.h5"
    later = list(results.glob("00004*"))
    for path in later:
        path.rename(tmp_path / path.name)
    first = read_results(made(), results, output)
    assert (first.reason, first.measured, first.rows) == ("missing", 4, 4)
    assert first.notes == ("1 measurements have no results yet",)
    assert (tmp_path / "mine.journal.jsonl").exists()
    for path in later:
        (tmp_path / path.name).rename(path)
    second = read_results(made(), results, output)
    assert (second.reason, second.measured, second.rows) == ("complete", 1, 5)
    third = read_results(made(), results, output)
    assert (third.measured, third.rows) == (0, 5)


def test_a_damaged_file_is_named_and_all_others_are_kept(results: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.h5"
    packed = results / "00002-many.times.json.gz"
    whole = gzip.decompress(packed.read_bytes())
    packed.write_bytes(gzip.compress(whole[: len(whole) // 2]))
    with pytest.raises(DatasetError, match=r"^1 results cannot be used.*00002-many.*cut short"):
        read_results(made(), results, output)
    assert len(rows_of(output)) == 4
    packed.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(DatasetError, match=r"00002-many\.times"):
        read_results(made(), results, output)
    packed.write_bytes(gzip.compress(whole))
    assert read_results(made(), results, output).reason == "complete"


def test_files_of_another_engine_are_known(results: Path, tmp_path: Path) -> None:
    for what in ("layers", "profile", "times"):
        shutil.copy(results / f"00000-one.{what}.json.gz", results / f"00003-one.{what}.json.gz")
    with pytest.raises(DatasetError, match=r"00003-one.layers.*is of another engine"):
        read_results(made(), results, tmp_path / "mine.h5")
    shutil.copy(results / "00002-one.profile.json.gz", results / "00003-one.profile.json.gz")
    with pytest.raises(DatasetError, match=r"00003-one.profile.*is a profile of another engine"):
        read_results(made(), results, tmp_path / "mine.h5")


def test_results_of_another_campaign_are_refused(results: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.h5"
    other = made(kinds={"dense": TABLE["kinds"]["dense"]})
    with pytest.raises(CampaignError, match="is of another campaign than tiny"):
        read_results(other, results, output)
    with pytest.raises(CampaignError, match="another seed or precision"):
        read_results(made(), results, output, seed=7)
    with pytest.raises(CampaignError, match="another seed or precision"):
        read_results(made(), results, output, settings={"precision": "fp16"})
    # More samples are the same campaign.
    assert read_results(made(samples=9), results, output).rows == 5
    machine = results / "machine.txt"
    machine.write_text(machine.read_text().replace("digest=", "digest=x"))
    with pytest.raises(CampaignError, match="mixes results of two campaigns"):
        read_results(made(), results, output)
    machine.unlink()
    with pytest.raises(CampaignError, match=r"has no machine.txt"):
        read_results(made(), results, output)
    (results / "manifest.json").write_text("{")
    with pytest.raises(CampaignError, match="is damaged"):
        read_results(made(), results, output)
    with pytest.raises(CampaignError, match="holds no campaign for trtexec"):
        read_results(made(), tmp_path / "elsewhere", output)


def test_states_of_the_card_are_flags(results: Path, tmp_path: Path) -> None:
    state = results / "00000.state"
    state.write_text(state.read_text().replace("0x4", "0x20").replace(", 0\n", ", 1\n"))
    read_results(made(), results, tmp_path / "mine.h5")
    rows = [row for row in rows_of(tmp_path / "mine.h5") if row.status is Status.OK]
    assert sorted(row.flags for row in rows) == [
        ("power_cap",), ("power_cap",), ("shared", "throttled"),
    ]  # fmt: skip


def test_the_script_goes_on_where_it_ended(
    machine: GpuMachine, tmp_path: Path, measured: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(measured, folder)
    for path in (folder / "results").glob("00003*"):
        path.unlink()
    (folder / "work" / "pid").write_text("4194305")  # of a start that was killed
    ended = machine.start(folder)
    assert "4/5 00003 ok" in ended.stdout
    assert "measured 1 now, 0 failed, 0 are left" in ended.stdout
    (folder / "work" / "pid").write_text(str(os.getpid()))
    assert "another run.sh is running here" in machine.start(folder).stderr
    (folder / "work" / "pid").unlink()
    other = machine.start(folder, STANDIN_VERSION="110100")
    assert "is of another machine, driver, TensorRT or campaign" in other.stderr
    assert other.returncode == 2
    assert "trtexec was not found" in machine.start(folder, PATH="/usr/bin:/bin").stderr


def test_a_lost_device_ends_the_script_and_loses_nothing(
    machine: GpuMachine, tmp_path: Path
) -> None:
    folder = tmp_path / "lost"
    write(made(samples=2), folder)
    gone = tmp_path / "gone"
    gone.touch()
    ended = machine.start(folder, STANDIN_LOST=str(gone))
    assert ended.returncode == 2
    assert "no CUDA-capable device is detected" in ended.stderr
    assert "nothing is lost" in ended.stderr
    assert not list((folder / "results").glob("0*"))


@pytest.mark.parametrize(
    ("version", "precision"), [("8503", "fp16"), ("110100", "bf16"), ("100500", "int8")]
)
def test_every_version_gets_options_that_it_has(
    machine: GpuMachine, tmp_path: Path, version: str, precision: str
) -> None:
    folder, output = tmp_path / "tiny-trtexec", tmp_path / "mine.h5"
    campaign = made(samples=1, repeat_share=1.0, kinds={"dense": TABLE["kinds"]["dense"]})
    write(campaign, folder, precision=precision)
    ended = machine.start(folder, STANDIN_VERSION=version)
    assert "measured 2 now, 0 failed" in ended.stdout, ended.stderr
    assert ended.stderr == ""
    read_results(campaign, folder, output)
    row, again = rows_of(output)
    assert (row.repeat, again.repeat) == (0, 1)
    assert again.value("execution_ms") == row.value("execution_ms")
    # Warm-ups, which TensorRT 8 exports with the rest, do not count.
    values = math.prod(row.layer.input_shape) + math.prod(row.layer.output_shape)
    assert row.value("execution_ms") == pytest.approx(0.005 + 1e-6 * values)
    assert row.value("preprocess_ms") > 0
    assert read_dataset(output).info.setting.precision == precision


def engine_of(*layers: tuple[str, str, int]) -> Engine:
    made = tuple(
        EngineLayer(name, kind, (), (EngineTensor(f"{name}.out", (1,), "float32", "linear"),),
                    (name,), parameters={"StreamId": stream})
        for name, kind, stream in layers
    )  # fmt: skip
    return Engine("test", made)


def test_copies_must_be_apart_complete_and_in_sequence() -> None:
    conv = "CaskConvolution"
    check_copies(engine_of(("copy0.A", conv, 0), ("copy1.A", conv, 0)), 2)
    with pytest.raises(UnsupportedError, match="1 of 3 copies are not among"):
        check_copies(engine_of(("copy0.A", conv, 0), ("copy1.A", conv, 0)), 3)
    with pytest.raises(UnsupportedError, match="1 of 2 copies are not among"):
        check_copies(engine_of(("copy0.A", conv, 0), ("copy1.A", "NoOp", 0)), 2)
    with pytest.raises(UnsupportedError, match="2 streams at once"):
        check_copies(engine_of(("copy0.A", conv, 0), ("copy1.A", conv, 1)), 2)


def test_models_run_and_copies_have_weights_of_their_own(tmp_path: Path) -> None:
    layer, shared = Dense(batch=1, features_in=64, features_out=64), SharedWeights()
    model = shared.model(layer, 3, "abc.00000")
    path = tmp_path / "three.onnx"
    path.write_bytes(model.SerializeToString())
    blocks = shared.write_blocks(tmp_path)
    assert blocks == {"weights.float32": 1}
    block = (tmp_path / "block.weights.float32").read_bytes()
    assert len(block) == BLOCK_BYTES
    (tmp_path / "weights.float32").write_bytes(block)
    whole = onnx.load(path)
    weights = {each.raw_data for each in whole.graph.initializer if len(each.dims) == 2}
    assert len(weights) == 3
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in (*session.get_inputs(), *session.get_outputs())]
    assert names == [f"copy{n}.{end}.abc.00000" for end in "xy" for n in range(3)]


def test_the_number_of_copies_is_bounded() -> None:
    small = Dense(batch=1, features_in=8, features_out=8)
    large = Dense(batch=64, features_in=8192, features_out=8192)
    image = Conv(batch=64, channels_in=64, height=112, width=112, kernel_height=1, kernel_width=1,
                 channels_out=64)  # fmt: skip
    assert copies_in(small, 0.005) == 16
    assert copies_in(large, 5.0) == 2
    # 206 MB in, 206 MB out, and no more than 512 MiB together.
    assert copies_in(image, 0.3) == 2


def test_a_folder_takes_one_campaign_and_can_be_extended(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-trtexec"
    first = write(made(samples=3), folder)
    model = (folder / "models" / "00002-many.onnx").read_bytes()
    longer = write(made(samples=6), folder)
    assert (first.layers, longer.layers) == (3, 6)
    assert (folder / "models" / "00002-many.onnx").read_bytes() == model
    assert longer.bytes < 10_000_000
    with pytest.raises(CampaignError, match="holds another campaign, seed or precision"):
        write(made(samples=3), folder, precision="fp16")
    with pytest.raises(CampaignError, match="does not take --threads"):
        write(made(samples=3), folder, threads=2)
    with pytest.raises(CampaignError, match="has no results yet"):
        read_results(made(), folder, tmp_path / "mine.h5")
    other = tmp_path / "full"
    other.mkdir()
    (other / "thing").touch()
    with pytest.raises(OutputError, match="is not empty"):
        write(made(samples=3), other)


def test_the_hours_bound_what_is_written(tmp_path: Path) -> None:
    written = write(made(samples=400, run={"hours": 0.05}), tmp_path / "short")
    # 0.05 hours are 180 s; half as many again as fit at some 10 s each.
    assert 20 <= written.runs <= 35
    manifest = json.loads((tmp_path / "short" / "manifest.json").read_text())
    assert len(manifest["runs"]) == written.runs


def test_from_campaign_to_prediction(
    machine: GpuMachine, tmp_path: Path, cli: Any, perceptron: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        "samples = 14\nseed = 1\nrepeat_share = 0.0\n[run]\nhours = 1\n[kinds.dense]\n"
        "batch = 1\nfeatures_in = { law = 'uniform', low = 40, high = 400 }\nbias = false\n"
        "features_out = { law = 'uniform', low = 10, high = 400 }\nactivation = 'none'\n"
    )
    words = ("bench", "tiny.toml", "--runner", "trtexec", "-o", "mine.h5")
    printed = cli.text(*words)
    assert "mine-trtexec: 14 layers, 14 measurements" in printed
    assert "next: copy mine-trtexec to the GPU machine, run there: sh run.sh" in printed
    following = printed.splitlines()[-1].split()
    assert following[:3] == ["resperf", "bench", "tiny.toml"]
    assert "has no results yet: run sh run.sh there" in cli.error(*following[1:])
    assert machine.start(Path("mine-trtexec")).returncode == 0
    printed = cli.text(*following[1:])
    assert "mine.h5: 14 rows (14 ok)" in printed
    assert "next: resperf train mine.h5" in printed
    cli.text("train", "mine.h5", "-o", "bundle", "--method", "baseline")
    network = perceptron("net.onnx", 300, 200, 100)
    found = cli.document(
        "predict", network, "--batch", "1", "--bundle", "bundle", "--framework", "tensorrt"
    )
    # 300 + 200 and 200 + 100 values.
    expected_ms = 2 * 0.005 + 1e-6 * 800
    assert found["phases"]["execution_ms"] == pytest.approx(expected_ms, rel=0.05)
    assert (found["framework"], found["device"]) == ("tensorrt", "a100-80gb")
    assert "--results needs --runner trtexec" in cli.error(*words[:2], "--results", "mine-trtexec")
    assert "trtexec measures tensorrt, not torch" in cli.error(*words, "--framework", "torch")
    assert "NVIDIA GPUs, not on cpu" in cli.error(*words, "--device", "cpu")
