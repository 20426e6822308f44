from __future__ import annotations

import functools
import math
import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import numpy as np
import pytest

from resperf.dataset import (
    Dataset,
    DatasetInfo,
    NetworkDescription,
    check_dataset,
    checksum,
    read_dataset,
    read_info,
    read_table,
    write_dataset,
)
from resperf.dataset.schema import MAX_TEXT_BYTES, ROW_COLUMNS, field_columns, kind_columns
from resperf.errors import DatasetError, OutputError
from resperf.layers import KINDS, Conv, Dense
from resperf.measurement import Measurement, Status
from resperf.quantities import PHASES

MeasuredFactory = Callable[..., Measurement]
FileFactory = Callable[..., Path]
EditedFactory = Callable[..., AbstractContextManager[h5py.File]]
DENSE = Dense(batch=1, features_in=9, features_out=4, activation="relu", bias=False)
CONV = Conv(
    batch=2, channels_in=3, height=9, width=7, kernel_height=3, kernel_width=3, channels_out=8
)


@pytest.fixture
def failed(info: DatasetInfo) -> MeasuredFactory:
    return functools.partial(
        Measurement, status=Status.CRASHED, setting=info.setting, platform=info.platform
    )


def test_what_is_written_is_read_back(
    write: FileFactory, measured: MeasuredFactory, failed: MeasuredFactory, info: DatasetInfo
) -> None:
    rows = (
        measured(CONV, started_at=1.0, flags=("busy", "drift")),
        measured(DENSE, started_at=2.0),
        failed(CONV, started_at=3.0, repeat=1, detail="Signal 9 – getötet"),  # noqa: RUF001
    )
    back = read_dataset(write("a.h5", *rows))
    assert back.info == info
    assert back.measurements[:2] == rows[:2]
    assert repr(back.measurements[2]) == repr(rows[2])  # NaN is not equal to itself


def test_medians_survive_float32_samples(write: FileFactory, measured: MeasuredFactory) -> None:
    path = write("a.h5", measured(execution_ms=(0.1, 1 / 3, 1e6 / 7)))
    assert read_dataset(path).measurements[0].value("execution_ms") == pytest.approx(
        1 / 3, rel=1e-7
    )
    assert read_table(path)["dense"].times_ms["execution_ms"].tolist() == [1 / 3]


def test_sixty_four_samples_fit_and_one_more_is_refused(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    times_ms = tuple(float(n) for n in range(1, 66))
    back = read_dataset(write("a.h5", measured(execution_ms=times_ms[:64])))
    assert back.measurements[0].samples["execution_ms"].values == times_ms[:64]
    with pytest.raises(DatasetError, match="65 samples of execution_ms; a row holds 64"):
        write("a.h5", measured(execution_ms=times_ms))


def test_long_failure_messages_are_cut_between_characters(
    write: FileFactory, failed: MeasuredFactory
) -> None:
    path = write("a.h5", failed(DENSE, detail="ü" * MAX_TEXT_BYTES))
    back = read_dataset(path).measurements[0].detail
    # 509 bytes are left beside the three of the ellipsis: 254 characters of two bytes.
    assert back == "ü" * 254 + "…"


def test_tables_have_python_types(
    write: FileFactory, measured: MeasuredFactory, failed: MeasuredFactory
) -> None:
    late = failed(DENSE, status=Status.TIMEOUT, repeat=1, flags=("busy", "drift"))
    path = write("a.h5", measured(DENSE), late)
    table = read_table(path)["dense"]
    assert len(table) == 2
    assert list(table.columns) == list(Dense.specs)
    assert table.columns["bias"].dtype == bool
    assert table.columns["bias"].tolist() == [False, False]
    assert table.columns["features_in"].dtype == np.int64
    assert table.columns["features_in"].tolist() == [9, 9]
    assert table.columns["activation"].tolist() == ["relu", "relu"]
    assert table.key.tolist() == [DENSE.key] * 2
    assert table.status.tolist() == ["ok", "timeout"]
    assert table.flags.tolist() == ["", "busy,drift"]
    assert table.repeat.tolist() == [0, 1]
    assert table.times_ms["execution_ms"][0] == 2.0
    assert table.times_ms["postprocess_ms"][0] == 1.0
    assert all(math.isnan(table.times_ms[name][1]) for name in table.times_ms)
    assert table.ok.tolist() == [True, False]
    rest = table.select(~table.ok)
    assert (rest.kind, rest.repeat.tolist()) == ("dense", [1])
    assert rest.columns["features_out"].tolist() == [4]


def test_every_column_says_its_unit_and_meaning(golden: Path) -> None:
    with h5py.File(golden) as file:
        kinds = {"conv", "dense", "dense_step", "pool", "reorder"}
        assert set(file) == {*kinds, "networks", "graphs", "descriptions"}
        assert file.attrs["schema_version"] == 1
        for kind in kinds:
            quantities = ("step_ms",) if kind == "dense_step" else PHASES
            assert set(file[kind]) == set(kind_columns(kind, quantities))
            for dataset in file[kind].values():
                assert dataset.attrs["unit"]
                assert dataset.attrs["description"]
        assert file["conv/height"].attrs["unit"] == "pixel"
        samples = file["conv/execution_samples_ms"]
        assert (samples.shape, samples.dtype) == ((2, 64), np.float32)
        assert samples[0, :3].tolist() == [1.0, 2.5, 4.0]
        assert np.isnan(samples[0, 3:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_field_hides_another_column(kind: str) -> None:
    fields = set(field_columns(kind))
    assert not fields & set(ROW_COLUMNS)
    assert not {name for name in fields if name.startswith(("preprocess", "execution", "postp"))}


def test_the_golden_file_reads_as_it_was_written(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(golden.parent)
    import make_dataset as made

    dataset = read_dataset(golden)
    assert dataset.info == made.INFO
    # Times that are not known differ from themselves.
    assert list(map(repr, dataset.measurements)) == list(map(repr, made.rows()))
    assert dataset.graphs == {made.NETWORK.digest: made.GRAPH}
    (content,) = dataset.descriptions.values()
    assert NetworkDescription.from_bytes(content) == made.DESCRIPTION
    assert dataset.measurements[0].layer.key == (
        "conv:batch=2,channels_in=3,height=9,width=7,kernel_height=3,kernel_width=3,"
        "stride_height=1,stride_width=1,dilation_height=1,dilation_width=1,pad_top=0,pad_left=0,"
        "pad_bottom=0,pad_right=0,layout=nchw,dtype=float32,channels_out=8,groups=1,bias=1,"
        "residual=0,activation=relu"
    )
    assert read_table(golden)["dense_step"].times_ms["step_ms"].tolist() == [3.5]
    assert checksum(golden) == "14a5f6f755f376bece242afd9326f41ad36b35e30fcbb798013621c056896259"


def test_equal_content_gives_equal_bytes_and_other_content_another_checksum(
    write: FileFactory, measured: MeasuredFactory
) -> None:
    first, same = write("a.h5", measured()), write("b.h5", measured())
    other = write("c.h5", measured(execution_ms=(1.0, 2.0, 5.0)))
    assert first.read_bytes() == same.read_bytes()
    assert checksum(first) == checksum(same) != checksum(other)
    with h5py.File(first) as file:
        assert file.attrs["checksum"] == checksum(first)


def test_many_rows_are_compressed(write: FileFactory, measured: MeasuredFactory) -> None:
    rows = [measured(Dense(batch=n, features_in=9, features_out=4)) for n in range(1, 700)]
    path = write("a.h5", *rows)
    with h5py.File(path) as file:
        assert file["dense/execution_samples_ms"].compression == "gzip"
    assert [row.layer for row in read_dataset(path).measurements] == [row.layer for row in rows]
    assert check_dataset(path) == []


def test_a_dataset_without_rows_is_a_dataset(write: FileFactory, info: DatasetInfo) -> None:
    path = write("a.h5")
    assert read_dataset(path) == Dataset(info, ())
    assert read_table(path) == {}
    assert read_info(path) == info


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"epoch,loss\n1,2\n", "is not an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "damaged or truncated"),
    ],
)
@pytest.mark.parametrize("reader", [read_dataset, read_table, read_info, checksum, check_dataset])
def test_other_files_are_refused(
    tmp_path: Path, content: bytes, message: str, reader: Callable[[Path], object]
) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        reader(tmp_path / "a.h5")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no dataset .*a\.h5; make one with: resperf bench"):
        read_dataset(tmp_path / "a.h5")
    with pytest.raises(DatasetError, match="is a folder"):
        read_dataset(tmp_path)


def test_damage_anywhere_is_noticed_before_hdf5_sees_it(tmp_path: Path, golden: Path) -> None:
    content = golden.read_bytes()
    damaged = tmp_path / "a.h5"
    for position in range(512, len(content), 9973):
        flipped = bytearray(content)
        flipped[position] ^= 0xFF
        for wrong in (bytes(flipped), content[:position]):
            damaged.write_bytes(wrong)
            with pytest.raises(DatasetError, match=r"damaged or truncated|not an HDF5 file"):
                read_table(damaged)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("schema_version", 3, "schema version 3, this resperf reads 1; use the resperf that wrote"),
        ("format", "other", "is an HDF5 file but not a resperf dataset"),
        ("settings", "{", "damaged"),
    ],
)
def test_unfit_attributes_are_refused(
    tmp_path: Path, edited: EditedFactory, name: str, value: object, message: str
) -> None:
    with edited() as file:
        file.attrs[name] = value
    with pytest.raises(DatasetError, match=message):
        read_dataset(tmp_path / "a.h5")


def test_unknown_kinds_and_impossible_layers_are_refused(
    tmp_path: Path, edited: EditedFactory
) -> None:
    path = tmp_path / "a.h5"
    with edited() as file:
        file["conv/groups"][0] = 5
    with pytest.raises(DatasetError, match=r"groups=5.*resperf dataset check"):
        read_dataset(path)
    with h5py.File(path, "r+") as file:
        file.create_group("lstm")
    with pytest.raises(DatasetError, match="kind lstm, unknown to this version of resperf"):
        read_table(path)


def _limited(limit_bytes: int, action: Callable[[], object]) -> None:
    """Run with a limit on file sizes: writing beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failing_write_keeps_the_old_file(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory
) -> None:
    old = write("a.h5", measured()).read_bytes()
    with pytest.raises(OutputError, match=r"a\.h5 could not be written .*nothing was changed"):
        _limited(1000, lambda: write("a.h5", measured(), measured(repeat=1)))
    assert (tmp_path / "a.h5").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_a_crash_before_the_rename_keeps_the_old_file(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write("a.h5", measured()).read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write("a.h5", measured(), measured(repeat=1))
    assert (tmp_path / "a.h5").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_unwritable_places_are_named(tmp_path: Path, info: DatasetInfo) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "a.h5", tmp_path / "absent" / "a.h5", tmp_path):
        with pytest.raises(OutputError, match=f"{path} could not be written"):
            write_dataset(path, Dataset(info, ()))
    assert (tmp_path / "file").read_text() == "x"
    with pytest.raises(OutputError, match="nothing was changed: make its folder or choose"):
        write_dataset(tmp_path / "absent" / "a.h5", Dataset(info, ()))


def test_a_link_keeps_pointing_where_it_did(
    tmp_path: Path, write: FileFactory, measured: MeasuredFactory
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.h5").symlink_to(tmp_path / "disk" / "b.h5")
    write("a.h5", measured())
    assert (tmp_path / "a.h5").is_symlink()
    assert len(read_dataset(tmp_path / "disk" / "b.h5").measurements) == 1


def test_columns_of_unlike_lengths_are_damaged(tmp_path: Path, edited: EditedFactory) -> None:
    with edited() as file:
        del file["conv/status"]
        file["conv/status"] = [b"ok"] * 99
    with pytest.raises(DatasetError, match="columns of conv differ in their numbers of rows"):
        read_table(tmp_path / "a.h5")


@pytest.mark.parametrize(("name", "place"), [("setting", 9), ("platform", -1)])
def test_rows_of_absent_settings_and_platforms_are_damaged(
    tmp_path: Path, edited: EditedFactory, name: str, place: int
) -> None:
    with edited() as file:
        file[f"conv/{name}"][0] = place
    for read in (read_table, read_dataset):
        with pytest.raises(DatasetError, match="damaged or truncated"):
            read(tmp_path / "a.h5")


@pytest.mark.parametrize("attribute", ["quantities", "settings", "source"])
def test_a_file_without_one_of_its_attributes_is_damaged(
    tmp_path: Path, edited: EditedFactory, attribute: str
) -> None:
    with edited() as file:
        del file.attrs[attribute]
    with pytest.raises(DatasetError, match="damaged"):
        read_dataset(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["conv", "conv/status"])
def test_a_group_or_column_of_another_form_is_damaged(
    tmp_path: Path, edited: EditedFactory, name: str
) -> None:
    # A single value; in place of a group, a column so long that reading it would never end.
    form = {"shape": (1 << 40,), "chunks": (1 << 16,)} if name == "conv" else {"shape": ()}
    with edited() as file:
        del file[name]
        file.create_dataset(name, dtype="f8", **form)
    for read in (read_table, read_dataset, check_dataset):
        with pytest.raises(DatasetError, match="conv is no group of columns"):
            read(tmp_path / "a.h5")
