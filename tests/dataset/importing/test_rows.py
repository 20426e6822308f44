"""Cells become layers and times; invalid rows are counted by reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from resperf.dataset.importing import shipped_mapping
from resperf.dataset.importing.mapping import mapping_of
from resperf.dataset.importing.rows import CountedRows, ForeignFile, ForeignRow
from resperf.errors import DatasetError
from resperf.layers import Conv, Dense, Pool

POOL = "batchsize,matsize,channels_in,poolsize,padding,strides,time_max,time_min,time_median\n"
DENSE = (
    "activation_fct,batchsize,dim_input,dim_output,gpu,optimizer,precision,"
    "timeUsed_max,timeUsed_median,timeUsed_min,timeUsed_std\n"
)


def read(path: Path, text: str, name: str) -> tuple[list[ForeignRow], list[str]]:
    """Read a file of a shipped format; return its rows and what was left out."""
    path.write_text(text)
    left_out = CountedRows()
    rows = list(ForeignFile.read(path).rows(shipped_mapping(name), left_out))
    return rows, [str(each) for each in left_out.all()]


def test_a_convolution_of_justus_by_hand(tmp_path: Path) -> None:
    header = (
        "activation_fct,batchsize,channels_in,channels_out,gpu,kernelsize,matsize,optimizer,"
        "padding,precision,strides,timeUsed_max,timeUsed_median,timeUsed_min,timeUsed_std,use_bias"
    )
    forward = "2,18,5,8,0,5,39,0,1,32,2,11.5,11.4,11.2,0.07,True"
    step = "1,9,100,97,0,4,71,6,0,32,2,3.7,3.4,3.3,0.15,False"
    rows, left_out = read(tmp_path / "c.csv", f"{header}\n{forward}\n\n{step}\n", "justus")
    assert left_out == []
    # SAME, 39 pixels in steps of 2: 20 windows span 43, so 2 pixels before and 2 after.
    assert rows[0].layer == Conv(
        batch=18, channels_in=5, height=39, width=39, kernel_height=5, kernel_width=5,
        stride_height=2, stride_width=2, pad_top=2, pad_left=2, pad_bottom=2, pad_right=2,
        layout="nhwc", channels_out=8, bias=True, activation="tanh",
    )  # fmt: skip
    assert rows[0].times_ms == {"execution_ms": (11.2, 11.4, 11.5)}
    assert rows[0].location == "c.csv line 2"
    assert rows[1].layer == Conv(
        batch=9, channels_in=100, height=71, width=71, kernel_height=4, kernel_width=4,
        stride_height=2, stride_width=2, layout="nhwc", channels_out=97, bias=False,
        activation="relu",
    )  # fmt: skip
    assert (rows[1].kind, rows[1].optimizer) == ("conv_step", "rmsprop")
    assert rows[1].median_ms == 3.4
    assert rows[1].times_ms.keys() == {"step_ms"}


def test_pooling_of_perfnet_is_a_whole_call(tmp_path: Path) -> None:
    rows, left_out = read(tmp_path / "p.csv", POOL + "41,37,18,7,0,4,4.0,3.9,3.95\n", "perfnet")
    assert left_out == []
    assert rows[0].layer == Pool(
        batch=41, channels_in=18, height=37, width=37, kernel_height=7, kernel_width=7,
        stride_height=4, stride_width=4, layout="nhwc", mode="max",
    )  # fmt: skip
    assert rows[0].times_ms == {"whole_call_ms": (3.9, 3.95, 4.0)}


def test_packed_files_byte_order_marks_and_spaces_are_read(tmp_path: Path) -> None:
    text = "\ufeff" + DENSE.replace(",", " , ") + "0, 30 ,3263.0,3675,0,0,32,2.3,2.2,2.1,0.04\r\n"
    path = tmp_path / "d.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    left_out = CountedRows()
    (row,) = ForeignFile.read(path).rows(shipped_mapping("justus"), left_out)
    assert row.layer == Dense(batch=30, features_in=3263, features_out=3675)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("41,37,18,7,0,4,4.0,3.9", "not as many cells as columns (first: p.csv line 2: 8 cells)"),
        ("41,,18,7,0,4,4.0,3.9,3.95", "no value in matsize (first: p.csv line 2)"),
        ("41,nan,18,7,0,4,4.0,3.9,3.95", "no value in matsize (first: p.csv line 2)"),
        ("41,37,18,7,2,4,4.0,3.9,3.95",
         "a value in padding that is not in the mapping (first: p.csv line 2: '2')"),
        ("41,3.5,18,7,0,4,4.0,3.9,3.95",
         "not a possible layer (first: p.csv line 2: pool: size='3.5' must be an integer)"),
        ("41,0,18,7,0,4,4.0,3.9,3.95",
         "not a possible layer (first: p.csv line 2: pool: height=0 must be an integer of at"),
        ("41,5,18,7,0,4,4.0,3.9,3.95", "not a possible layer (first: p.csv line 2: pool: the outp"),
        ("41,37,18,7,0,4,4.0,3.9,", "no value in time_median (first: p.csv line 2)"),
        ("41,37,18,7,0,4,4.0,3.9,fast", "time_median is not a number (first: p.csv line 2: 'fast'"),
        ("41,37,18,7,0,4,inf,3.9,3.95", "time_max is not a finite number (first: p.csv line 2: "),
        ("41,37,18,7,0,4,4.0,0,3.95",
         "a time that is not above 0 (first: p.csv line 2: time_min=0, time_median=3.95,"),
        ("41,37,18,7,0,4,4.0,3.9,4.5",
         "shortest, median and longest time out of order (first: p.csv line 2: time_min=3.9,"),
    ],
)  # fmt: skip
def test_rows_without_sense_are_named_by_reason(tmp_path: Path, cells: str, reason: str) -> None:
    good = "1,8,1,2,0,2,3,1,2\n"
    rows, left_out = read(tmp_path / "p.csv", f"{POOL}{cells}\n{good}", "perfnet")
    assert [row.location for row in rows] == ["p.csv line 3"]
    assert left_out[0].startswith(f"1 row left out: {reason}")
    assert len(left_out) == 1


def test_rows_of_one_reason_are_counted_together(tmp_path: Path) -> None:
    bad = "0,30,32,36,0,7,32,2.3,2.2,2.1,0\n0,30,32,36,0,8,32,2.3,2.2,2.1,0\n"
    worse = "9,30,32,36,0,0,32,2.3,2.2,2.1,0\n"
    rows, left_out = read(tmp_path / "d.csv", DENSE + worse + bad, "justus")
    assert rows == []
    assert left_out == [
        "2 rows left out: of no kind in the mapping (first: d.csv line 3: optimizer=7)",
        "1 row left out: a value in activation_fct that is not in the mapping "
        "(first: d.csv line 2: '9')",
    ]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"p\.csv has no column 'timeUsed_min'; its"):
        read(tmp_path / "p.csv", POOL, "justus")
    times = "time_max,time_min,time_median\n"
    with pytest.raises(
        DatasetError, match=r"no file of perfnet: conv lacks .*; pool lacks .*dense"
    ):
        read(tmp_path / "p.csv", f"batchsize,{times}", "perfnet")
    with pytest.raises(DatasetError, match="two columns 'time_max'"):
        read(tmp_path / "p.csv", f"time_max,{times}", "perfnet")
    with pytest.raises(DatasetError, match=r"p\.csv has no column .* its columns are none"):
        read(tmp_path / "p.csv", "", "perfnet")
    with pytest.raises(DatasetError, match=r"p\.csv line 2 is not CSV"):
        read(tmp_path / "p.csv", POOL + '1,"2"3,4\n', "perfnet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (gzip.compress(b"a,b\n" * 99, mtime=0)[:20], "damaged gzip file"),
        (b"\x1f\x8b nonsense", "damaged gzip file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        ForeignFile.read(path)


def test_one_file_may_mix_kinds_and_have_its_own_words(tmp_path: Path) -> None:
    mapping = mapping_of(
        {
            "name": "mine", "description": "d", "framework": "onnxruntime", "delimiter": ";",
            "times": {"unit": "us", "execution": {"median": "t"}},
            "values": {"activation": {"None": "none", "ReLU": "relu"}},
            "kinds": {
                "dense": {
                    "columns": {"batch": "n", "features_in": "ci", "features_out": "co",
                                "activation": "act"},
                    "where": {"op": ["Gemm", "MatMul"]},
                },
                "pool": {
                    "columns": {"batch": "n", "channels_in": "ci", "size": "hw"},
                    "constants": {"kernel": "2", "stride": "2"},
                    "where": {"op": ["MaxPool"]},
                },
            },
        },
        "here",
    )  # fmt: skip
    (tmp_path / "a.csv").write_text(
        "op;n;ci;co;hw;act;t\nGemm;1;8;4;;ReLU;1500\nMaxPool;1;8;;4;None;20\nMatMul;2;8;4;;None;9\n"
        "Softmax;1;8;;;None;5\n"
    )
    left_out = CountedRows()
    rows = list(ForeignFile.read(tmp_path / "a.csv").rows(mapping, left_out))
    assert [row.layer for row in rows] == [
        Dense(batch=1, features_in=8, features_out=4, activation="relu"),
        Pool(batch=1, channels_in=8, height=4, width=4, kernel_height=2, kernel_width=2,
             stride_height=2, stride_width=2),
        Dense(batch=2, features_in=8, features_out=4),
    ]  # fmt: skip
    assert rows[0].times_ms == {"execution_ms": (1.5,)}
    assert str(left_out.all()[0]) == (
        "1 row left out: of no kind in the mapping (first: a.csv line 5: op=Softmax)"
    )


def test_a_name_that_reads_like_nothing_is_a_name(tmp_path: Path) -> None:
    mapping = mapping_of(
        {
            "name": "mine", "description": "d", "framework": "onnxruntime",
            "times": {"unit": "ms", "execution": {"median": "t"}},
            "kinds": {
                "dense": {
                    "columns": {"batch": "n", "features_in": "ci", "features_out": "co",
                                "activation": "act"},
                },
            },
        },
        "here",
    )  # fmt: skip
    (tmp_path / "a.csv").write_text("n,ci,co,act,t\n1,8,4,none,3\n1,8,5,relu,3\n1,8,,relu,3\n")
    left_out = CountedRows()
    rows = list(ForeignFile.read(tmp_path / "a.csv").rows(mapping, left_out))
    assert [row.layer.fields()["activation"] for row in rows] == ["none", "relu"]
    assert next(str(each) for each in left_out.all()).startswith("1 row")
