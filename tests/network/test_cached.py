"""Networks that an earlier process read: the same as read anew, and never taken for others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from resperf import disk_cache
from resperf.errors import ShapeError
from resperf.network import Network, Tensor, read_network, read_network_once

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "models" / "networks").glob("*.onnx"))
LIGHT = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))


def plain(value: Any) -> Any:
    """Turn what a network holds into what can be compared, types included."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, Tensor):
        return [plain(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, dict):
        return [(key, plain(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return (type(value), value)


def content(network: Network) -> list[Any]:
    """Return all that a network holds."""
    every = (*network.nodes, None, *network.weight_nodes)
    nodes = [node and [plain(getattr(node, f.name)) for f in fields(node)] for node in every]
    rest = replace(network, nodes=(), weight_nodes=())
    return [nodes, *(plain(getattr(rest, f.name)) for f in fields(rest))]


def cached_files() -> list[Path]:
    return sorted(disk_cache.folder_of("networks").glob("*.json"))


@pytest.mark.parametrize("path", [*REFERENCE, *LIGHT], ids=lambda path: path.stem)
def test_what_was_read_before_is_the_same_as_read_anew(path: Path) -> None:
    expected = content(read_network(path, batch=2 if path in REFERENCE else None))
    for _ in range(2):
        again = read_network_once(path, batch=2 if path in REFERENCE else None)
        assert content(again) == expected
    assert len(cached_files()) == 1


def odd_network(path: Path, values: Any = (1.0, float("nan"))) -> Path:
    """Write a network with constants, lists, a graph and text among its attributes."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["inner"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 3])],
    )
    nodes = [
        helper.make_node("If", ["condition"], ["either"], then_branch=branch, else_branch=branch),
        helper.make_node("Strange", ["either"], ["z"], domain="own", text="ab", many=[1, 2],
                         given=numpy_helper.from_array(np.array(values, np.float16)),
                         halves=[0.5, float("inf")], words=["a", "b"]),
        helper.make_node("Add", ["either", "weight"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "odd",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, [1]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "yz"],
        [numpy_helper.from_array(np.arange(3, dtype=np.float32), "weight")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    onnx.save(model, path)
    return path


def test_attributes_of_every_sort_are_cached_exactly(tmp_path: Path) -> None:
    path = odd_network(tmp_path / "odd.onnx")
    expected = content(read_network(path))
    assert content(read_network_once(path)) == expected
    assert len(cached_files()) == 1
    assert content(read_network_once(path)) == expected


def test_other_content_shapes_and_batches_are_read_anew(tmp_path: Path) -> None:
    path = odd_network(tmp_path / "odd.onnx")
    first = read_network_once(path)
    odd_network(path, (3.0, 4.0))
    second = read_network_once(path)
    assert content(first) != content(second)
    assert read_network_once(path, batch=2).batch == 2
    # Another name is another network: its name is part of every answer.
    path.rename(tmp_path / "other.onnx")
    assert read_network_once(tmp_path / "other.onnx").name == "other"
    with pytest.raises(ShapeError):
        read_network_once(tmp_path / "other.onnx", shapes={"nothing": (1,)})
    assert len(cached_files()) == 4


@pytest.mark.parametrize(("limit", "value"), [("_MOST_NODES", 2), ("_MOST_BYTES", 11)])
def test_large_networks_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = odd_network(tmp_path / "odd.onnx")
    monkeypatch.setattr(f"resperf.network.cached.{limit}", value)
    read_network_once(path)
    assert not cached_files()
    monkeypatch.setattr(f"resperf.network.cached.{limit}", value + 1)
    read_network_once(path)
    assert len(cached_files()) == 1


def test_damage_and_folders_that_cannot_be_written_only_cost_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = odd_network(tmp_path / "odd.onnx")
    expected = content(read_network_once(path))
    (file,) = cached_files()
    whole = file.read_text(encoding="utf-8")
    for damaged in ("", "null", "[1]", "{}", whole[:-40], whole.replace("float16", "float17")):
        file.write_text(damaged, encoding="utf-8")
        assert content(read_network_once(path)) == expected
        assert file.read_text(encoding="utf-8") == whole
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert content(read_network_once(path)) == expected


def test_other_code_does_not_take_what_this_code_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = odd_network(tmp_path / "odd.onnx")
    read_network_once(path)
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "code_state", lambda *packages: f"another {packages}")
        read_network_once(path)
    assert len(cached_files()) == 2
    package = tmp_path / "network"
    package.mkdir()
    monkeypatch.setattr(disk_cache, "__file__", str(tmp_path / "disk_cache.py"))
    states = set()
    for text in ("a", "ab"):
        (package / "module.py").write_text(text)
        disk_cache.code_state.cache_clear()
        states.add(disk_cache.code_state("network"))
    disk_cache.code_state.cache_clear()
    assert len(states) == 2


def test_the_oldest_half_goes_when_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_BYTES", 4)
    for number in range(5):
        disk_cache.store("sort", f"{number}.json", number)  # a byte
        file = disk_cache.folder_of("sort") / f"{number}.json"
        # Not by the clock: files of one moment have no order.
        if file.exists():
            os.utime(file, ns=(number, number))
    left = sorted(path.name for path in disk_cache.folder_of("sort").iterdir())
    assert left == ["2.json", "3.json", "4.json"]
    assert disk_cache.load("sort", "4.json") == 4
    assert disk_cache.load("sort", "0.json") is None


def test_a_second_process_predicts_without_loading_onnx() -> None:
    network = ROOT / "models" / "networks" / "resnet18.onnx"
    code = (
        "import sys, resperf; "
        f"p = resperf.predict({str(network)!r}, batch=1, device='cpu'); "
        "print(p.total_ms, 'onnx' in sys.modules)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [loaded for _, loaded in runs] == ["True", "False"]
    assert runs[0][0] == runs[1][0]
