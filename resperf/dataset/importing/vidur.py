"""Vidur's measurements: half-precision layers of language models, kernels alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, common_device
from resperf.dataset.importing.rows import ForeignFile, has_columns, read_files
from resperf.errors import DatasetError
from resperf.layers import kind_of
from resperf.measurement import Samples, StopReason
from resperf.quantities import EXECUTION
from resperf.settings import Setting

VIDUR = "vidur"
"""Name of the format."""
_SOURCE = Source(
    VIDUR,
    "single layers of language models in PyTorch, float16, kernels alone without dispatch; "
    "products are assumed to have no bias",
    "Amey Agrawal, Nitin Kedia, Jayashree Mohan, Ashish Panwar, Nipun Kwatra, Bhargav S. Gulavani, "
    "Ramachandran Ramjee, Alexey Tumanov: Vidur, a Large-Scale Simulation Framework for LLM "
    "Inference, MLSys 2024; github.com/microsoft/vidur, MIT",
)
_NAME = re.compile(r"compute__(?P<device>[^_]+)__(?P<model>.+)__mlp\.csv(\.gz)?")
_COLLECTIVES = re.compile(r"network__.+\.csv(\.gz)?")
_STATISTICS = ("min", "median", "max")


def import_vidur(paths: Sequence[Path], output: Path, *, device: str | None = None) -> Imported:
    """Import Vidur's files of one device as a dataset of layers.

    Parameters
    ----------
    paths : sequence of Path
        Files ``compute__DEVICE__MODEL__mlp.csv``, compressed or not. Collectives (``network__...``)
        are between devices and no layers: they are left out and counted.
    output, device
        As in `import_neusight`.

    Raises
    ------
    DatasetError, OutputError
        As in `import_neusight`.
    """
    files = read_files(paths)
    words = {file.name: _NAME.fullmatch(file.name) for file in files}
    for file in files:
        if words[file.name] is None and not _COLLECTIVES.fullmatch(file.name):
            raise DatasetError(
                f"{file.name} is no file of vidur: names are compute__DEVICE__MODEL__mlp.csv"
            )
    named = {name: match for name, match in words.items() if match is not None}
    if not named:
        raise DatasetError(
            "nothing to import: these files hold collectives between devices, which are no layers"
        )
    facts = common_device({name: match["device"] for name, match in named.items()}, device)
    published = Published(_SOURCE, facts.device)
    for file in files:
        if file.name in named:
            model = named[file.name]["model"]
            _add_file(published, file, published.setting(model, "kernels", precision="fp16"))
        else:
            for location, _ in file.cells():
                published.left_out.add("collectives between devices, which are no layers", location)
    return published.write(output, files)


class _Model:
    """A row's language model, as split over devices that work in parallel."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        def number(name: str) -> int:
            return int(float(cells[name]))

        self.tokens, self.width = number("num_tokens"), number("n_embd")
        self.parts = number("num_tensor_parallel_workers")
        heads, own_heads = number("n_head"), number("n_kv_head")
        self.projected = (heads + 2 * own_heads) * (self.width // heads)
        self.inner = number("n_expanded_embd")
        self.gated = cells["use_gated_mlp"] == "True"
        # With one normalisation a block computes attention and MLP beside each other, and adds
        # both: its additions take twice as long.
        self.adds_both = not cells.get("time_stats.post_attention_layernorm.median")

    def dense(self, features_in: int, features_out: int) -> tuple[str, dict[str, object]]:
        return "dense", {
            "batch": self.tokens, "features_in": features_in, "features_out": features_out,
            "bias": False,
        }  # fmt: skip

    def norm(self) -> tuple[str, dict[str, object]]:
        # Models with a gated block are of Llama's kind, which normalises by the root mean square.
        function = "rms" if self.gated else "layer"
        return "norm", {
            "batch": self.tokens, "channels": self.width, "pixels": 1, "function": function
        }  # fmt: skip


_Arguments = tuple[str, dict[str, object]]
_LAYERS: Mapping[str, Callable[[_Model], _Arguments | None]] = {
    "attn_pre_proj": lambda m: m.dense(m.width, m.projected // m.parts),
    "attn_post_proj": lambda m: m.dense(m.width // m.parts, m.width),
    "mlp_up_proj": lambda m: m.dense(m.width, (1 + m.gated) * m.inner // m.parts),
    "mlp_down_proj": lambda m: m.dense(m.inner // m.parts, m.width),
    "input_layernorm": lambda m: m.norm(),
    "post_attention_layernorm": lambda m: m.norm(),
    "mlp_act": lambda m: None if m.gated else (
        "activation", {"batch": m.tokens, "values": m.inner // m.parts, "activation": "gelu"}
    ),
    "add": lambda m: None if m.adds_both else (
        "elementwise", {"batch": m.tokens, "inner": m.width, "function": "add"}
    ),
}  # fmt: skip
"""Operator -> its layer; None where no kind of layer is one kernel of that sort."""
_NO_LAYER = "operators that are no layer of one kernel here"


_check_header = has_columns(
    "num_tokens", "n_embd", "n_head", "n_kv_head", "n_expanded_embd", "use_gated_mlp",
    "num_tensor_parallel_workers", "time_stats.mlp_up_proj.median",
)  # fmt: skip


def _add_file(published: Published, file: ForeignFile, setting: Setting) -> None:
    for location, cells in file.cells(_check_header):
        with published.reading(location, "not a possible layer"):
            model = _Model(cells)
            for operator, times_ms in list(_times(cells)):
                make = _LAYERS.get(operator)
                arguments = make(model) if make is not None else None
                if arguments is None:
                    published.left_out.add(_NO_LAYER, location, operator)
                else:
                    samples = Samples(times_ms, len(times_ms), 0, StopReason.BUDGET)
                    kind, fields = arguments
                    layer = kind_of(kind).from_fields({**fields, "dtype": "float16"})
                    published.add(layer, setting, {EXECUTION: samples})


def _times(cells: Mapping[str, str]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the operators of a row that were measured, with shortest, median and longest time."""
    for column in cells:
        operator = column.removeprefix("time_stats.").removesuffix(".median")
        if column == f"time_stats.{operator}.median":
            times_ms = tuple(
                float(cells[f"time_stats.{operator}.{statistic}"]) for statistic in _STATISTICS
            )
            if not 0 < times_ms[0] <= times_ms[1] <= times_ms[2]:
                raise ValueError(f"{operator}: times {times_ms} out of order or not above 0")
            yield operator, times_ms
