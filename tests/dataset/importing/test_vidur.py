"""Vidur's files: half-precision layers of language models."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.dataset import (
    check_dataset,
    read_dataset,
)
from resperf.dataset.importing import import_vidur
from resperf.errors import DatasetError
from resperf.layers import Activation, Dense, Elementwise, Layer, Norm
from resperf.quantities import Estimator

OPERATORS = (
    "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj",
    "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
SIZES = {"n_head": 8, "n_kv_head": 2, "n_embd": 512, "n_expanded_embd": 1536, "vocab_size": 1000,
         "num_tokens": 64, "num_tensor_parallel_workers": 2}  # fmt: skip


def file_of(tmp_path: Path, *, gated: bool, name: str = "", **changes: object) -> Path:
    cells: dict[str, object] = {}
    # The blocks of the other model compute attention and MLP beside each other.
    operators = (*OPERATORS, *(("post_attention_layernorm",) if gated else ()))
    for place, operator in enumerate(operators):
        for statistic, share in (("min", 0.5), ("max", 2.0), ("median", 1.0)):
            cells[f"time_stats.{operator}.{statistic}"] = (place + 1) * share
    cells |= {**SIZES, "use_gated_mlp": gated, **changes}
    path = tmp_path / (name or "compute__h100__maker__net__mlp.csv")
    path.write_text(",".join(cells) + "\n" + ",".join(map(str, cells.values())) + "\n")
    return path


def layers(path: Path) -> dict[float, Layer]:
    assert check_dataset(path) == []
    return {each.value("execution_ms"): each.layer for each in read_dataset(path).measurements}


def test_layers_of_a_gated_model(tmp_path: Path) -> None:
    imported = import_vidur([file_of(tmp_path, gated=True)], tmp_path / "a.h5")
    half = {"batch": 64, "bias": False, "dtype": "float16"}
    # Heads of 64: queries of 8, keys and values of 2 each are (8 + 4) x 64 = 768 columns.
    assert layers(tmp_path / "a.h5") == {
        2.0: Norm(batch=64, channels=512, pixels=1, function="rms", dtype="float16"),
        3.0: Dense(features_in=512, features_out=384, **half),
        5.0: Dense(features_in=256, features_out=512, **half),
        6.0: Dense(features_in=512, features_out=1536, **half),
        8.0: Dense(features_in=768, features_out=512, **half),
        9.0: Elementwise(batch=64, inner=512, function="add", dtype="float16"),
        10.0: Norm(batch=64, channels=512, pixels=1, function="rms", dtype="float16"),
    }
    rows = read_dataset(tmp_path / "a.h5").measurements
    row = next(each for each in rows if each.value("execution_ms") == 2.0)
    assert row.samples["execution_ms"].values == (1.0, 2.0, 4.0)
    assert row.samples["execution_ms"].estimator is Estimator.MEDIAN
    assert (row.platform.device, row.setting.precision) == ("h100", "fp16")
    assert row.setting.options == {
        "measured by": "vidur", "session": "maker__net", "contains": "kernels",
    }  # fmt: skip
    (left,) = imported.left_out
    assert (left.rows, left.reason) == (3, "operators that are no layer of one kernel here")


def test_a_plain_model_has_an_activation_and_another_norm(tmp_path: Path) -> None:
    import_vidur([file_of(tmp_path, gated=False)], tmp_path / "a.h5")
    found = layers(tmp_path / "a.h5")
    assert found[7.0] == Activation(batch=64, values=768, activation="gelu", dtype="float16")
    assert found[2.0].fields()["function"] == "layer"
    assert found[6.0].fields()["features_out"] == 768
    # Two additions, of attention and of MLP, are no layer of one kernel.
    assert 9.0 not in found


def test_collectives_stay_out(tmp_path: Path) -> None:
    collective = tmp_path / "network__h100_dgx__all_reduce.csv"
    collective.write_text("time_stats.all_reduce.min,size\n0.1,2048\n0.2,4096\n")
    imported = import_vidur([file_of(tmp_path, gated=True), collective], tmp_path / "a.h5")
    assert ("collectives between devices, which are no layers", 2) in {
        (each.reason, each.rows) for each in imported.left_out
    }
    with pytest.raises(DatasetError, match="nothing to import: these files hold collectives"):
        import_vidur([collective], tmp_path / "b.h5")


def test_rows_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    good = file_of(tmp_path, gated=True)
    text = good.read_text().splitlines()
    good.write_text("\n".join([*text, text[1].replace("64,2,True", "64,,True"),
                               text[1].replace("8,2,512", "0,2,512"),
                               text[1].replace("0.5,2.0,1.0", "5,2,1")]) + "\n")  # fmt: skip
    imported = import_vidur([good], tmp_path / "a.h5")
    assert imported.rows == {"norm": 2, "dense": 4, "elementwise": 1}
    reasons = {each.reason: each.rows for each in imported.left_out}
    assert reasons["no value in num_tensor_parallel_workers"] == 1
    assert reasons["not a possible layer"] == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlp.csv", "mlp.csv is no file of vidur: names are compute__DEVICE__MODEL__mlp.csv"),
        ("compute__voodoo__net__mlp.csv", "no device 'voodoo'; name it with --device"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as raised:
        import_vidur([file_of(tmp_path, gated=True, name=name)], tmp_path / "a.h5")
    assert "\n" not in str(raised.value)
    path = tmp_path / "compute__a40__net__mlp.csv"
    path.write_text("num_tokens\n1\n")
    with pytest.raises(DatasetError, match="has no column 'n_embd'; its columns are num_tokens"):
        import_vidur([path], tmp_path / "a.h5")
