"""Processes that share a training step: two of them by gloo, started by torchrun for real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from resperf.backends import backend
from resperf.backends._torch_member import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets
from resperf.backends._torch_team import TeamError
from resperf.errors import NetworkError, ResperfError
from resperf.platform import this_platform, usable_cores

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
STEP = ["forward_ms", "backward_ms", "update_ms", "step_ms"]


@dataclass
class Found:
    """What a team of two answered, before and after one of them was killed."""

    units: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)


@contextmanager
def expected(found: Found) -> Iterator[None]:
    try:
        yield
    except (ResperfError, TeamError) as error:
        found.errors.append(error)


def unused_weight(path: Path) -> Path:
    """Write a convolution beside one whose result is rounded, so that its filter learns nothing."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "c", pads=[1] * 4),
        helper.make_node("Conv", ["x", "v"], ["d"], "d", pads=[1] * 4),
        helper.make_node("Cast", ["d"], ["i"], "i", to=TensorProto.INT64),
        helper.make_node("Cast", ["i"], ["f"], "f", to=TensorProto.FLOAT),
        helper.make_node("Add", ["c", "f"], ["y"], "y"),
    ]
    shape = [4, 3, 3, 3]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, np.zeros(shape, np.float32).tobytes(),
                           raw=True)
        for name in ("w", "v")
    ]  # fmt: skip
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where processes that are started have their temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> Found:
    folder = tmp_path_factory.mktemp("networks")
    try:
        return asked(folder)
    except TeamError:
        # Once in some twenty runs a process aborted while PyTorch profiled its memory.
        return asked(folder)


def asked(folder: Path) -> Found:
    """Ask a team of two, and kill one of them."""
    made = Found()
    torch = backend("torch", "cpu", processes=2, optimizer="sgd")
    with expected(made):
        torch.network(NETWORKS / "absent.onnx", batch=1)
    with torch.network(NETWORKS / "lenet5.onnx", batch=2) as built:
        made.units = {name: phase.unit for name, phase in built.phases.items()}
        for name, phase in built.phases.items():
            made.values[name] = [phase.sampler() for _ in range(3)]
    unused = unused_weight(folder / "unused.onnx")
    with torch.network(unused, batch=1) as built:
        made.values["unused"] = [built.phases["step_ms"].sampler() for _ in range(2)]
        agent = psutil.Process(torch._running_team._process.pid)
        members = [each for each in agent.children() if each.environ().get("RANK") == "1"]
        members[0].kill()
        with expected(made):
            built.phases["step_ms"].sampler()
    with expected(made):
        torch.network(unused, batch=1)
    return made


def test_a_shared_step_has_its_parts_and_the_exchange_apart(found: Found) -> None:
    assert found.units == {
        **dict.fromkeys(STEP, "ms"), "allreduce_ms": "ms", "peak_memory_bytes": "bytes",
        "process_memory_bytes": "bytes",
    }  # fmt: skip
    assert all(value > 0 for values in found.values.values() for value in values)
    # Weights, gradients and the copies of these that are exchanged: 61,706 of each.
    assert min(found.values["peak_memory_bytes"]) > 3 * 4 * 61_706


def test_torchrun_leaves_no_files(found: Found, temporary: Path) -> None:
    assert found.errors
    assert list(temporary.glob("torchelastic*")) == []


def test_weights_that_learn_nothing_are_not_waited_for(found: Found) -> None:
    assert len(found.values["unused"]) == 2


def test_what_cannot_be_read_is_said_and_does_not_end_the_team(found: Found) -> None:
    assert isinstance(found.errors[0], NetworkError)
    assert "no file" in str(found.errors[0])


def test_a_process_that_is_killed_ends_the_team_with_its_name(found: Found) -> None:
    assert isinstance(found.errors[1], TeamError)
    assert str(found.errors[1]) == "process 1: killed by the system, probably out of memory"
    assert "have ended" in str(found.errors[2])


def test_the_platform_says_how_many_share_a_run() -> None:
    two = backend("torch", "cpu", processes=2, optimizer="sgd")
    many = usable_cores() + 1
    more = backend("torch", "cpu", processes=many, optimizer="sgd")
    one = backend("torch", "cpu", processes=1, optimizer="sgd")
    assert (two.platform().devices, more.platform().devices) == (2, many)
    assert more.platform().interconnect == "gloo on 1 host, oversubscribed"
    assert one.platform() == this_platform("cpu")
    # Rows of one process and of two are learnt together.
    assert one.setting() == two.setting()
    assert one.setting().threads == 1


def test_gradients_are_exchanged_in_buckets_of_those_that_are_ready() -> None:
    # The last weights are ready first; a bucket is closed once it has its size.
    first, half = FIRST_BUCKET_BYTES, BUCKET_BYTES // 2
    assert buckets([8, half, half, half, first - 4, 4]) == [first, 2 * half, half + 8]
    assert buckets([100]) == [100]
    assert buckets([8, first]) == [first, 8]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"processes": 2}, "add --training sgd"),
        ({"processes": 2, "optimizer": "sgd", "compiled": "dynamo"}, "eager PyTorch only"),
        ({"processes": 0}, "must be at least 1"),
        ({"processes": 2, "optimizer": "sgd", "device": "cpu:1"}, "from the first on, not cpu:1"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ResperfError, match=words):
        backend("torch", "cpu", **settings)
