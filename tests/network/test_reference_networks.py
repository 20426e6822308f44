"""The shipped networks against published parameter and MAC counts; the onnx wheel's against ORT."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

from resperf.network import Network, Node, materialise, read_network, structure_digest

ROOT = Path(__file__).parents[2]
NETWORKS = ROOT / "models" / "networks"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# torchvision's documentation gives parameters and GFLOPs (multiply-adds, two digits); lenet5,
# zfnet, nin and unet are worked out by hand from their papers' tables, darknet19's 5.58 billion
# operations are its author's.
PUBLISHED = {
    "lenet5": (61_706, 0.000417),
    "alexnet": (61_100_840, 0.71),
    "zfnet": (62_357_608, None),
    "nin": (7_595_176, None),
    "vgg11": (132_863_336, 7.61),
    "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.63),
    "resnet18": (11_689_512, 1.81),
    "resnet50": (25_557_032, 4.09),
    "mobilenet_v1": (4_231_976, 0.569),
    "mobilenet_v2": (3_504_872, 0.30),
    "squeezenet1_1": (1_235_496, 0.35),
    "googlenet": (6_624_904, 1.50),
    "densenet121": (7_978_856, 2.83),
    "darknet19": (None, 5.58 / 2),
    "unet": (31_030_658, None),
}


def parameters(net: Network) -> int:
    weights = {
        name
        for node in net.nodes
        for index, name in enumerate(node.inputs)
        if net.tensors[name].is_weight
        and node.op != "Clip"
        and (node.op != "BatchNormalization" or index < 3)
    }
    return sum(math.prod(net.tensors[name].shape) for name in weights)


def macs(net: Network, node: Node) -> int:
    if node.op == "Conv":
        per_output = math.prod(net.tensors[node.inputs[1]].shape[1:])
        return math.prod(net.tensors[node.outputs[0]].shape) * per_output
    return math.prod(net.tensors[node.inputs[1]].shape) if node.op == "Gemm" else 0


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("builder", ROOT / "tools" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_shipped_network_is_checked() -> None:
    assert {path.stem for path in NETWORKS.glob("*.onnx")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    net = read_network(NETWORKS / f"{name}.onnx", batch=1)
    wanted_parameters, wanted_gmacs = PUBLISHED[name]
    if wanted_parameters is not None:
        assert parameters(net) == wanted_parameters
    if wanted_gmacs is not None:
        found = sum(macs(net, node) for node in net.nodes) / 1e9
        assert found == pytest.approx(wanted_gmacs, rel=0.006)
    assert net.notes == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_batch_reaches_every_tensor(name: str) -> None:
    path = NETWORKS / f"{name}.onnx"
    one, eight = read_network(path, batch=1), read_network(path, batch=8)
    assert (one.batch, eight.batch) == (1, 8)
    for tensor in one.tensors.values():
        first, *rest = eight.tensors[tensor.name].shape or (None,)
        if not tensor.is_weight:
            assert (first, *rest) == (8 * tensor.shape[0], *tensor.shape[1:])


def test_the_builder_gives_the_shipped_bytes(tmp_path: Path) -> None:
    builder().main(
        ["networks", "--output", str(tmp_path), "--only", "lenet5", "resnet50", "googlenet"]
    )
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (NETWORKS / path.name).read_bytes()


@pytest.mark.parametrize("name", PUBLISHED)
def test_declared_outputs_are_the_read_ones(name: str) -> None:
    model = builder().NETWORKS[name]().model(name)
    dims = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    net = read_network(NETWORKS / f"{name}.onnx", batch=5)
    assert net.tensors["output"].shape == (5, *dims[1:])


def test_the_light_networks_are_all_there() -> None:
    assert len(list(LIGHT.glob("*.onnx"))) == 9


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_real_networks_read_at_any_batch(path: Path) -> None:
    net = read_network(path, batch=4)
    assert not {node.op for node in net.nodes} & {"ConstantOfShape", "Constant"}
    (output,) = (net.tensors[name] for name in net.outputs)
    assert output.shape[:2] == (4, 1000)
    for node in net.nodes:
        assert net.tensors[node.outputs[0]].shape[0] == 4
    if any(node.op == "Reshape" for node in net.nodes):
        assert any("batch 1 was fixed" in note for note in net.notes)


@pytest.mark.parametrize("name", ["light_shufflenet", "light_squeezenet", "light_inception_v1"])
def test_onnxruntime_gives_the_shapes_that_were_read(name: str) -> None:
    path = LIGHT / f"{name}.onnx"
    net = read_network(path, batch=3)
    model, weights = materialise(path, batch=3)
    assert weights == {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Every tensor as an output, so that all shapes are compared and not only the last.
    names = [node.outputs[0] for node in net.nodes]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (given,) = net.inputs
    x = np.zeros(net.tensors[given].shape, np.float32)
    found = session.run(names, {given: x})
    assert [array.shape for array in found] == [net.tensors[name].shape for name in names]


def test_digests_distinguish_structures_and_ignore_names_and_weights(tmp_path: Path) -> None:
    path = NETWORKS / "lenet5.onnx"
    digest = structure_digest(read_network(path, batch=1))
    assert digest == structure_digest(read_network(path, batch=1))
    assert digest != structure_digest(read_network(path, batch=2))
    model = onnx.load(path, load_external_data=False)
    weights = materialise(path, batch=1)[1]
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    for node in model.graph.node:
        node.name = f"renamed_{node.name}"
    renamed = tmp_path / "other.onnx"
    renamed.write_bytes(model.SerializeToString())
    assert structure_digest(read_network(renamed, batch=1)) == digest
    activation = next(node for node in model.graph.node if node.op_type == "Relu")
    activation.op_type = "Tanh"
    renamed.write_bytes(model.SerializeToString())
    assert structure_digest(read_network(renamed, batch=1)) != digest
    activation.op_type = "Relu"
    pads = next(a for a in model.graph.node[0].attribute if a.name == "pads")
    pads.ints[:] = [1, 1, 3, 3]
    renamed.write_bytes(model.SerializeToString())
    assert structure_digest(read_network(renamed, batch=1)) != digest
