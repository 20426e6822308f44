"""Made bundle-v2.json and bundle-v3.json here: the manifest of bundle-v1 with what networks taught,
and then carried over from another machine.

Usage: python tests/golden/make_bundle_v2_v3.py. Their ONNX files are those of bundle-v1.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
IN_PLACE = {
    "factors": {"conv": 1.25, "dense": 1.1},
    "node_ms": 0.004,
    "handover_ms_per_mb": 0.02,
    "log_width": 0.08,
    "evidence": {
        "networks": [
            {
                "network": "lenet5", "batch": 1, "measured_ms": 0.5, "alone_ms": 0.4,
                "fitted_ms": 0.49, "left_out_ms": 0.48,
            }
        ],
        "mape": {"alone": 0.2, "fitted": 0.02, "left_out": 0.04},
    },
}  # fmt: skip

if __name__ == "__main__":
    manifest = json.loads((HERE / "bundle-v1" / "bundle.json").read_text(encoding="utf-8"))
    second = {**manifest, "schema_version": 2, "in_place": IN_PLACE}
    origin = {**manifest["fingerprint"], "processor": "another processor"}
    third = {**second, "schema_version": 3, "carried": {"origin": origin, "factor": 0.5}}
    for made in (second, third):
        text = json.dumps(made, indent=1, ensure_ascii=False)
        path = HERE / f"bundle-v{made['schema_version']}.json"
        path.write_text(text + "\n", encoding="utf-8")
