"""Write totals.json: what each shipped bundle predicts for some reference networks.

    python tests/golden/make_totals.py

Run it where totals are meant to change, and say in the commit by how much and why.
"""

from __future__ import annotations

import json
from pathlib import Path

from resperf.bundle import Bundle
from resperf.network import read_network
from resperf.prediction import predict_network

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = (
    ("lenet5", 8), ("resnet18", 1), ("mobilenet_v2", 8), ("densenet121", 1), ("unet", 1),
)  # fmt: skip
"""Reference networks of different operators, and the batch size of each."""


def total_ms(bundle: Bundle, name: str, batch: int) -> float:
    """Predict a reference network."""
    network = read_network(ROOT / "models" / "networks" / f"{name}.onnx", batch=batch)
    return predict_network(network, bundle).total_ms


def main() -> None:
    """Predict all of them."""
    totals = {
        folder.name: {
            f"{name} {batch}": float(f"{total_ms(Bundle.load(folder), name, batch):.6g}")
            for name, batch in NETWORKS
        }
        for folder in sorted((ROOT / "models" / "bundles").iterdir())
        if (folder / "bundle.json").is_file()
    }
    Path(__file__).with_name("totals.json").write_text(json.dumps(totals, indent=1) + "\n")


if __name__ == "__main__":
    main()
