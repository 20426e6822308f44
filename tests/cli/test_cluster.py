"""`resperf cluster`, and what `bench --ray` refuses before it looks for a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLANNED = """
[[node]]
name = "gpu"
count = 2
device = "v100"
devices = 4
cores = 40
ram_bytes = 4e11
[inside]
name = "NVLink"
latency_s = 1e-5
bandwidth_bytes_per_s = 1.5e11
"""


def test_a_planned_cluster_is_shown(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "planned.toml"
    path.write_text(PLANNED)
    text = cli.text("cluster", path)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "planned: 2 nodes, 8 devices"
    assert "gpu v100 2 4 40 372.5 GiB 16.0 GiB 1.57e+13" in lines
    # 2 x 4 cards of 15.7 TFLOP/s and 16 GiB.
    assert "available in all 8 80 745.1 GiB 128.0 GiB 1.256e+14" in lines
    assert "least of a node 4 40 372.5 GiB 64.0 GiB 6.28e+13" in lines
    assert "inside a node: NVLink, 10 us, 150 GB/s" in lines
    assert "between nodes: not known" in lines
    assert lines[-1].startswith("not known of gpu: sockets, cores_available, ram_available_bytes")
    document = cli.json("cluster", path)
    assert document["totals"]["cores"] == {"sum": 80, "minimum": 40, "spread": 0}
    assert document["totals"]["disk_bytes_per_s"] is None


def test_what_cannot_be_described_is_one_line(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "planned.toml"
    path.write_text(PLANNED.replace("4e11", "-4e11"))
    assert "node 1: ram_bytes=-400000000000.0 must be plausible" in cli.error("cluster", path)
    assert "name a TOML file or a known cluster" in cli.error("cluster")
    assert "no cluster 'nowhere'" in cli.error("cluster", "nowhere")
    assert "write --ray" in cli.error("cluster", path, "--exchange")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quick", "--hosts", "1", "2"], "add --ray, --framework torch and --training"),
        (["quick", "--ray", "--adaptive"], "all devices of a class, not --adaptive; leave it out"),
        (["quick", "--ray", "--device", "cuda:1"], "not a numbered device"),
        (["quick", "--ray", "-o", __file__], "test_cluster.py, but a folder"),
    ],
)
def test_what_ray_cannot_do_is_refused(cli: Any, words: list[str], message: str) -> None:
    assert message in cli.error("bench", *words)


def test_without_ray_the_pip_line_is_named_and_nothing_imports_it(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for words in (["cluster"], ["bench", "quick"]):
        assert "pip install 'resperf[ray]'" in cli.error(*words, "--ray")
    code = (
        "import sys, resperf; resperf.predict('lenet5', device='cpu'); print('ray' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout.split()[-1] == b"False"
