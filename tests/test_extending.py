"""The examples of docs/extending.md do what the page says: one file and one row are enough."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from resperf.testing.synthetic import GB_PER_S, GFLOPS, NODE_MS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WATTS = 20.0


class Checkout:
    """A copy of the package, with sections of the page carried out in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "resperf", folder / "resperf")
        for shared in ("models", "microbench"):
            (folder / shared).symlink_to(ROOT / shared)

    def carry_out(self, *headings: str) -> list[list[str]]:
        """Write the files and rows of sections; return their commands."""
        commands = []
        for heading in headings:
            (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
            for language, block in BLOCK.findall(section):
                first, _, rest = block.partition("\n")
                path = self.folder / first.split()[-1]
                if language == "sh":
                    commands += [shlex.split(line) for line in block.splitlines()]
                elif language == "diff":
                    path.write_text(with_rows(path.read_text(), rest))
                else:
                    assert not path.exists(), f"{path} is there already"
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(rest)
        return commands

    def install(self) -> None:
        """Let the entry points of the page's pyproject.toml be found."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        package = self.folder / "toy-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
        lines = []
        for group, rows in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in rows.items())]
        (package / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def python(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True, text=True, timeout=300, check=False, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, command: list[str], *more: str) -> Any:
        """Run one of the page's commands."""
        assert command[0] == "resperf"
        return json.loads(self.python("-m", "resperf", *command[1:], "--json", *more))


def with_rows(text: str, diff: str) -> str:
    """Insert each added line behind the line above it, which the file has once."""
    above = ""
    for line in diff.splitlines():
        if line.startswith("+"):
            text = text.replace(f"{above}\n", f"{above}\n{line[1:]}\n")
        above = line[1:]
        assert text.count(f"{above}\n") == 1, above
    return text


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def write_det(path: Path) -> None:
    """Write a network of one operator: 8 matrices of 32 x 32 for each of 2 samples."""
    from onnx import TensorProto, helper, save

    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 8, 32, 32]), ("y", [2, 8]))
    )
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"], name="det")], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_a_layer_kind_is_one_file_and_one_row(checkout: Checkout) -> None:
    bench, train, predict = checkout.carry_out("A layer kind")
    write_det(checkout.folder / "det.onnx")
    assert checkout.run(bench)["statuses"] == {"ok": 61}
    assert list(checkout.run(train)["rows"]) == ["determinant"]
    (found,) = checkout.run(predict)
    (layer,) = found["layers"]
    assert layer["kind"] == "determinant"
    # 16 x 32^3 / 3 macs; 16 x 32 x 32 values in and 16 out, of 4 bytes.
    expected_ms = NODE_MS + 2 * 174_762 / (GFLOPS * 1e6) + 4 * 16 * 1025 / (GB_PER_S * 1e6)
    assert layer["execution_ms"] == pytest.approx(expected_ms, rel=0.01)
    shutil.copytree(ROOT / "tests" / "conformance", checkout.folder / "tests")
    words = ("-q", "-p", "no:cacheprovider", "tests/test_kinds.py", "-k", "determinant")
    assert "8 passed" in checkout.python("-m", "pytest", *words)


def test_a_target_a_method_and_a_quantity_are_a_file_and_a_row_each(checkout: Checkout) -> None:
    sections = ("A target", "A method", "A quantity", "The tests of a plug-in")
    bench, train, predict = checkout.carry_out(*sections)
    checkout.install()
    assert "2 passed" in checkout.python("-m", "pytest", "-q", "tests/test_toy.py")
    assert set(checkout.run(bench)["statuses"]) == {"ok"}
    checkout.run(train)
    (found,) = checkout.run(predict)
    assert found["method"] == "per-byte"
    # All layers' energy, which the call has no part in.
    layers_ms = sum(layer["execution_ms"] for layer in found["layers"])
    energy = found["quantities"]["energy_millijoules"]
    assert energy["value"] == pytest.approx(WATTS * layers_ms, rel=1e-3)
