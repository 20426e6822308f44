"""Export the networks of this folder again, with random weights and then without any.

    python tests/lowering/exported/export.py

Needs torch, torchvision, tensorflow and tf2onnx. TensorRT Engine Explorer's engines are of the same
networks: torchvision's ResNet-18 and the ResNet-50 of Keras (stride in the first 1 x 1 convolution
of a block, NHWC input), as older versions of both exporters wrote them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from resperf.network import weightless

FOLDER = Path(__file__).parent
BATCH = 32


def export_torch(path: Path) -> None:
    import torch
    import torchvision

    network = torchvision.models.resnet18(weights=None).eval()
    image = torch.randn(BATCH, 3, 224, 224)
    torch.onnx.export(network, (image,), str(path), dynamo=False, opset_version=17)


def export_keras(path: Path) -> None:
    import tensorflow as tf
    import tf2onnx

    network = tf.keras.applications.ResNet50(weights=None)
    function = tf.function(lambda image: network(image, training=False))
    image = tf.TensorSpec((BATCH, 224, 224, 3), tf.float32, name="input_1")
    tf2onnx.convert.from_function(
        function, input_signature=[image], opset=13, output_path=str(path)
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        for name, export in (("resnet18-torch", export_torch), ("resnet50-keras", export_keras)):
            export(path)
            (FOLDER / f"{name}.onnx").write_bytes(weightless(path))


if __name__ == "__main__":
    main()
