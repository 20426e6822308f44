"""Networks of PyTorch, Keras and transformers are read without an ONNX file."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import resperf
from resperf.cli.main import main
from resperf.errors import MissingExtraError, NetworkError
from resperf.prediction.reading import read

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 (only where PyTorch is)

IMAGE = (1, 3, 32, 32)


def conv_net() -> nn.Module:
    """Return a network with batch normalisation, a buffer of its own and a view of the batch."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3),
        nn.Flatten(), nn.Dropout(), nn.Linear(8 * 30 * 30, 10),
    )  # fmt: skip


def operators(network: Any, **options: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operators that a network is read as, with their shapes."""
    (graph,) = read(network, options.pop("batch", None), options.pop("shapes", None), **options)
    return [(node.op, graph.tensors[node.outputs[0]].shape) for node in graph.nodes]


EXPECTED = [
    ("Conv", (1, 16, 32, 32)), ("BatchNormalization", (1, 16, 32, 32)), ("Relu", (1, 16, 32, 32)),
    ("Conv", (1, 8, 30, 30)), ("Flatten", (1, 7200)), ("Gemm", (1, 10)),
]  # fmt: skip


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(100, 8), nn.Linear(8, 4)

    def forward(self, ids: Any, scale: Any) -> Any:
        return self.out(self.table(ids) * scale)


@pytest.mark.parametrize("inputs", [((2, 16), (2, 16, 1)), [(2, 16), [2, 16, 1]]])
def test_shapes_by_position_have_the_types_of_the_names_of_the_arguments(inputs: Any):
    assert ("Gather", (2, 16, 8)) in operators(Words(), inputs=inputs)


def test_what_lacks_is_named_as_transformers_names_it(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    transformers.ViTConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(NetworkError, match=r"--shape pixel_values=1,3,224,224"):
        resperf.predict(tmp_path / "config.json", device="h100")
    with pytest.raises(NetworkError, match=r"folder of transformers; give .*config\.json"):
        resperf.predict(tmp_path, device="h100")


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": torch.zeros(IMAGE)},
        {"inputs": (torch.zeros(IMAGE),)},
        {"inputs": IMAGE},
        {"inputs": {"input": IMAGE}},
        {"shapes": {"input": IMAGE}},
        {"inputs": torch.zeros(IMAGE).numpy()},
    ],
)
def test_a_module_is_read_for_inference_whatever_form_its_inputs_have(options: dict[str, Any]):
    module = conv_net()
    assert operators(module, **options) == EXPECTED
    assert module.training
    assert all(part.training for part in module.modules())


def test_weights_need_no_data():
    with torch.device("meta"):
        absent = conv_net()
    assert operators(absent, inputs=IMAGE) == EXPECTED
    assert all(weight.is_meta for weight in absent.parameters())
    with torch._subclasses.FakeTensorMode():
        fake, example = conv_net(), torch.zeros(IMAGE)
    assert operators(fake, inputs=example) == EXPECTED


def test_a_batch_is_that_of_the_example_or_the_one_asked_for():
    assert operators(conv_net(), inputs=(4, 3, 32, 32))[-1] == ("Gemm", (4, 10))
    sizes = [graph.batch for graph in read(conv_net(), [1, 8], None, inputs=IMAGE)]
    assert sizes == [1, 8]
    assert operators(conv_net(), inputs=IMAGE, batch=8)[-1] == ("Gemm", (8, 10))


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.register_buffer("cache", torch.zeros(512, 1024))
        self.shift = torch.ones(16)

    def forward(self, input_ids, *, scale: float = 1.0, pair: Any = None) -> dict[str, Any]:
        self.cache[0, 0] = scale
        extra = 0 if pair is None else pair[0] + pair[1]
        return {"y": (self.embed(input_ids) + self.shift) * scale + extra, "note": "no tensor"}


def test_keywords_nested_inputs_and_plain_tensors_of_a_module():
    with torch.device("meta"):
        absent = Keywords()
    for module in (Keywords(), absent):
        given = {"input_ids": (2, 7), "scale": 3.0, "pair": [(2, 7, 16), (2, 7, 16)]}
        assert ("Gather", (2, 7, 16)) in operators(module, inputs=given)
        with pytest.raises(NetworkError, match="input_ids"):
            read(module, 1, inputs={"scale": 3.0})


def test_what_the_older_exporter_refuses_goes_by_the_newer_one():
    pytest.importorskip("onnxscript")

    class Differences(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.diff(x).relu()

    assert ("Relu", (5, 7)) in operators(Differences(), inputs=(1, 8), batch=5)


def test_errors_say_what_pytorch_says_in_one_line():
    class Unknown(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svd(x)[0]

    for module, options, text in (
        (conv_net(), {}, "needs inputs"),
        (
            torch.jit.trace(conv_net().eval(), torch.zeros(IMAGE)),
            {"inputs": IMAGE},
            "a TorchScript mod",
        ),
        (conv_net(), {"inputs": (1, 4, 32, 32)}, "expected input.* 3 channels"),
        (Unknown(), {"inputs": (1, 8, 8)}, "linalg_svd"),
    ):
        with pytest.raises(NetworkError, match=text) as error:
            read(module, None, None, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(NetworkError, match="inputs= is for"):
        read("resnet18", None, inputs=IMAGE)


def saved(module: nn.Module, path: Path, **options: Any) -> Path:
    torch.export.save(
        torch.export.export(module.eval(), (torch.zeros(2, 3, 32, 32),), **options), path
    )
    return path


def test_a_program_of_torch_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    free = ({0: torch.export.Dim("batch")},)
    path = saved(conv_net(), tmp_path / "net.pt2", dynamic_shapes=free)
    assert operators(path)[-1][1] == (2, 10)
    assert operators(path, batch=5)[-1][1] == (5, 10)
    assert operators(path, shapes={"input": (3, 3, 32, 32)})[-1][1] == (3, 10)
    with pytest.raises(NetworkError, match=r"no input 'x'; inputs: input"):
        read(path, None, {"x": (3, 3, 32, 32)})
    assert main(["predict", str(path), "--device", "h100", "--batch", "1", "8"]) == 0
    assert "net, batch 8, on h100" in capsys.readouterr().out


def test_a_program_of_a_fixed_batch_says_how_to_free_it(tmp_path: Path):
    class Token(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cat([torch.zeros(1, 1, 32).expand(x.shape[0], -1, -1), x[:, 0]], 1)

    path = saved(Token(), tmp_path / "net.pt2")
    assert operators(path, batch=2)
    with pytest.raises(
        NetworkError, match=r"if its batch is fixed, export .*dynamic_shapes=\(\{0: torch.export.D"
    ):
        read(path, 4)


def changed(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> Path:
    """Write a copy of an archive with other records."""
    target = path.with_name("hostile.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(*change(name, old.read(name)))
    return target


def test_a_program_with_asserts_and_operators_of_many_names_is_no_code(tmp_path: Path):
    class Mixed(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.where((x > 0) & (x < 1), x.to(torch.float64).softmax(-1), 0)

    path = saved(Mixed(), tmp_path / "net.pt2")
    assert "Softmax" in {op for op, _ in operators(path)}


def test_a_program_that_would_run_code_is_refused(tmp_path: Path):
    path = saved(conv_net(), tmp_path / "net.pt2")
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    torch.save((Evil(),), tmp_path / "evil.pt")
    pickled = (tmp_path / "evil.pt").read_bytes()
    changes = [
        lambda name, data: (name, pickled if "sample_inputs" in name else data),
        lambda name, data: (name.replace("weights/weight_0", "constants/opaque_obj_0"), data),
        lambda name, data: (name, data.replace(b"torch.ops.aten.relu.default", b"torch.os.getcwd")),
        lambda name, data: (name, data.replace(b'"relu"', b'"a=os.getcwd()"')),
        lambda name, data: (name, data[: len(data) // 2] if name.endswith(".json") else data),
    ]
    for change in changes:
        with pytest.raises(NetworkError):
            read(changed(path, change), None)
    assert not marker.exists()
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(NetworkError, match=r"torch\.export\.save"):
        read(tmp_path / "text.pt2", None)


def test_of_a_wrapper_that_cannot_be_exported_its_network_is_asked_for():
    torch = pytest.importorskip("torch")

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(4, 2)

        def forward(self, x):
            raise ValueError("images are read from files")

    match = r"images are read from files; if it wraps a network, give that, its \.model"
    with pytest.raises(NetworkError, match=match):
        read(Wrapper(), None, inputs=(1, 4))
    assert operators(Wrapper().model, inputs=(1, 4))


def test_a_configuration_of_transformers(tmp_path: Path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    small = {
        "model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2,
        "intermediate_size": 64, "vocab_size": 100, "architectures": ["BertForMaskedLM"],
        "auto_map": {"AutoModel": "evil.Evil"}, "trust_remote_code": True,
    }  # fmt: skip
    path.write_text(json.dumps(small))
    shapes = {"input_ids": (1, 12)}
    assert operators(path, shapes=shapes)[-1][1] == (1, 12, 100)
    assert operators(path, shapes=shapes, batch=3)[-1][1] == (3, 12, 100)
    for values, text in (
        ({"model_type": "unheard-of", "auto_map": {"AutoModel": "evil.Evil"}}, "'unheard-of'"),
        ({**small, "hidden_size": 33}, "not a multiple"),
        ({"model_type": ["bert"]}, "no model type"),
        (["bert"], r"it is no config\.json of transformers"),
        ([], "cannot be exported"),
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(NetworkError, match=text):
            read(path, None, shapes)
    path.write_text(json.dumps(small))
    with pytest.raises(NetworkError, match="--shape input_ids"):
        read(path, None)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"resperf\[transformers\]"):
        read(tmp_path / "config.json", None)


def test_keras_models_and_files(tmp_path: Path):
    keras = pytest.importorskip("keras")
    pytest.importorskip("tf2onnx")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None, None, 3), name="image"),
            layers.Conv2D(8, 3),
            layers.GlobalAveragePooling2D(),
        ]
    )
    model.save(tmp_path / "net.keras")
    shapes = {"image": (1, 32, 32, 3)}
    ways = [operators(way, shapes=shapes, batch=4) for way in (model, tmp_path / "net.keras")]
    assert ways[0] == ways[1]
    assert ("Conv", (4, 8, 30, 30)) in ways[0]
    hostile = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x + 1)])
    hostile.save(tmp_path / "lambda.keras")
    with pytest.raises(NetworkError, match=r"(?i)lambda"):
        read(tmp_path / "lambda.keras", 1)
    (tmp_path / "text.keras").write_text("no archive")
    with pytest.raises(NetworkError, match=r"text\.keras is damaged, or not of Keras 3; write it"):
        read(tmp_path / "text.keras", 1)
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    both = keras.Model({"left": left, "right": right}, layers.Dense(3)(layers.Add()([left, right])))
    assert operators(both, batch=2)[-1][1] == (2, 3)


def test_the_same_prediction_as_of_the_exported_file(tmp_path: Path):
    module = conv_net().eval()
    torch.onnx.export(module, torch.zeros(IMAGE), str(tmp_path / "net.onnx"), dynamo=False)
    given = resperf.predict(module, device="cpu", inputs=IMAGE)
    exported = resperf.predict(tmp_path / "net.onnx", device="cpu")
    assert given.total_ms == pytest.approx(exported.total_ms, rel=0.01)
    (many,) = resperf.predict_many([module], device="cpu", inputs=IMAGE)
    assert many.total_ms == given.total_ms


def test_a_configuration_without_shapes_says_which_inputs_it_takes(tmp_path: Path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    speech = {
        "model_type": "whisper", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 100,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    path.write_text(json.dumps(speech))
    with pytest.raises(NetworkError, match="--shape input_features=1,80,3000 --shape decoder_inp"):
        read(path, None)
    shapes = {"input_features": (1, 80, 3000), "decoder_input_ids": (1, 1)}
    assert ("Conv", (1, 32, 1500)) in operators(path, shapes=shapes)
    del shapes["decoder_input_ids"]
    with pytest.raises(NetworkError, match="needs the decoder's input, add --shape decoder_input_"):
        operators(path, shapes=shapes)


def test_keras_models_of_classes_and_with_gelu():
    keras = pytest.importorskip("keras")

    class Mlp(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(5, activation="gelu")

        def call(self, x: Any) -> Any:
            return self.hidden(x)

    model = Mlp()
    with pytest.raises(NetworkError, match=r"mlp.* does not know its input yet; call it with an"):
        read(model, 2)
    model(keras.ops.zeros((1, 8)))
    operators_of_gelu = dict(operators(model, batch=2))
    assert operators_of_gelu["Erf"] == (2, 5)  # ONNX has no Erfc.
