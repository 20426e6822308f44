"""timm's measurements: step times of whole networks, with lists of their operators."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, common_device, sample
from resperf.dataset.importing.rows import ForeignFile, has_columns, read_files
from resperf.dataset.records import ListedOperator, ListedTensor, NetworkDescription
from resperf.errors import DatasetError, first_line
from resperf.measurement import NetworkRef, Status
from resperf.quantities import EXECUTION, Estimator
from resperf.records import parse_json
from resperf.settings import Mode, Setting

TIMM = "timm"
"""Name of the format."""
_SOURCE = Source(
    TIMM,
    "batch steps of whole networks in PyTorch, random inputs on the device: mean of 40 steps after "
    "10, cudnn.benchmark; training steps with cross entropy and SGD; amp: autocast to float16",
    "Ross Wightman: PyTorch Image Models, folder results; github.com/huggingface/"
    "pytorch-image-models, Apache-2.0",
)
_STEPS, _WARMUPS = 40, 10
_NAME = re.compile(
    r"benchmark-(?P<mode>infer|train)-(?P<precision>[a-z]+\d*)-(?P<layout>nchw|nhwc)"
    r"-pt(?P<version>\d+)-(?:cu(?P<toolkit>\d+)|cpu)-(?P<device>.+?)(?P<compiled>-dynamo)?\.csv(\.gz)?"
)
_OPERATORS = re.compile(r".+\.jsonl(\.gz)?")
_ROUNDING = 0.005001
"""Millions of parameters are given with two decimals."""
_NEAR = 1e-3
"""Share by which the parameters of one architecture may differ between versions of timm."""


@dataclass(frozen=True)
class _Key:
    """A measured network in a file of its own, as it is joined to lists of operators."""

    architecture: str
    size: int


@dataclass(frozen=True)
class _Row:
    """A row of a file, parameters in millions."""

    location: str
    key: _Key
    parameters: float
    batch: int | None
    time_ms: float


def import_timm(
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None
) -> Imported:
    """Import timm's benchmark files of one device as a dataset of networks.

    Parameters
    ----------
    paths : sequence of Path
        Files such as ``benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv``, whose names say device,
        precision, layout and versions; and, if there is one, a file of operator lists (``.jsonl``),
        which is joined by architecture, image size and number of parameters. Compressed or not.
    output, device, graphs
        As in `import_neusight`; a graph is named like ``resnet50-224.onnx``.

    Raises
    ------
    DatasetError, OutputError
        As in `import_neusight`.
    """
    files = read_files(paths)
    lists = [file for file in files if _OPERATORS.fullmatch(file.name)]
    tables = [file for file in files if file not in lists]
    words = {file.name: _words(file.name) for file in tables}
    facts = common_device({name: parts["device"] for name, parts in words.items()}, device)
    published = Published(_SOURCE, facts.device)
    networks = _Networks(published, _read_lists(lists))
    for file in tables:
        _add_file(published, file, words[file.name], networks)
    return published.write(output, files, graphs=graphs)


def _words(name: str) -> dict[str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise DatasetError(
            f"{name} is no file of timm: names say mode, precision, layout, versions and device, "
            "such as benchmark-infer-amp-nchw-pt240-cu124-rtx3090-dynamo.csv"
        )
    return {word: value or "" for word, value in match.groupdict().items()}


def _version(digits: str) -> str:
    """Return PyTorch's version: ``240`` is 2.4.0, ``113`` is 1.13."""
    return f"1.{digits[1:]}" if digits.startswith("1") else ".".join(digits)


def _setting(published: Published, words: Mapping[str, str], session: str) -> Setting:
    training = words["mode"] == "train"
    digits = words["toolkit"]
    contains = "forward, backward and update" if training else "forward"
    return published.setting(
        session,
        f"{contains}, kernels and dispatch",
        {"CUDA": f"{digits[:-1]}.{digits[-1]}"} if digits else {},
        framework_version=_version(words["version"]),
        mode=Mode.TRAINING if training else Mode.INFERENCE,
        optimizer="sgd" if training else "",
        precision=words["precision"],
        layout=words["layout"],
        compiled="dynamo" if words["compiled"] else "eager",
    )


def _add_file(
    published: Published, file: ForeignFile, words: Mapping[str, str], networks: _Networks
) -> None:
    rows = list(_rows(file, words["mode"], published))
    merged = networks.are_merged(rows)
    setting = _setting(published, words, re.sub(r"\.csv(\.gz)?$", "", file.name))
    by_batch = {batch: replace(setting, batch=batch) for batch in {row.batch for row in rows}}
    quantity = "step_ms" if words["mode"] == "train" else EXECUTION
    for row in rows:
        network = networks.network(row, merged)
        if math.isnan(row.time_ms):
            reason = "the file gives no step time"
            published.mark("without a time", reason, row.location, row.key.architecture)
            published.add(network, by_batch[row.batch], {}, status=Status.CRASHED, detail=reason)
        else:
            steps = sample(row.time_ms, Estimator.THROUGHPUT_MEAN, _STEPS, _WARMUPS)
            published.add(network, by_batch[row.batch], {quantity: steps})


def _rows(file: ForeignFile, mode: str, published: Published) -> Iterable[_Row]:
    """Yield the rows that can be read, and count the others."""
    columns = {name: f"{mode}_{name}" for name in ("step_time", "batch_size", "img_size")}
    check_header = has_columns("model", "param_count", *columns.values())
    for location, cells in file.cells(check_header):
        with published.reading(location):
            size = float(cells[columns["img_size"]])
            batch = float(cells[columns["batch_size"]]) if columns["batch_size"] in cells else None
            row = _Row(
                location,
                _Key(cells["model"], int(size)),
                float(cells["param_count"]),
                None if batch is None else int(batch),
                float(cells.get(columns["step_time"], "nan")),
            )
            if row.time_ms <= 0 or math.isinf(row.time_ms) or size < 1 or not row.parameters > 0:
                raise ValueError("a figure is not above 0")
            yield row


class _Networks:
    """Networks by the lists of operators, which say what a row's parameters belong to."""

    def __init__(
        self, published: Published, lists: Mapping[_Key, Sequence[NetworkDescription]]
    ) -> None:
        self._published, self._lists = published, lists
        self._subjects: dict[str, NetworkRef] = {}

    def are_merged(self, rows: Iterable[_Row]) -> bool:
        """Whether most networks of a file that can be told apart had their branches merged.

        One setting of the benchmark decides it for all networks of a file.
        """
        merged = [
            matches[0].reparameterised
            for row in rows
            if len(self._lists.get(row.key, ())) > 1 and len(matches := self._matches(row)) == 1
        ]
        return sum(merged) * 2 > len(merged)

    def _matches(self, row: _Row) -> list[NetworkDescription]:
        """Return the networks of which a row's number of parameters may be, as it is rounded."""
        apart = [
            (abs((description.parameters or 0) / 1e6 - row.parameters), description)
            for description in self._lists.get(row.key, ())
        ]
        exact = [description for difference, description in apart if difference <= _ROUNDING]
        return exact or [
            description for difference, description in apart if difference <= _NEAR * row.parameters
        ]

    def network(self, row: _Row, merged: bool) -> NetworkRef:
        """Return the network of a row, with its list of operators if there is one."""
        matches = self._matches(row)
        if matches:
            fitting = [match for match in matches if match.reparameterised == merged]
            described = (fitting or matches)[0]
        else:
            described = self._unlisted(row)
        if described.name not in self._subjects:
            self._subjects[described.name] = self._published.network(described)
        return self._subjects[described.name]

    def _unlisted(self, row: _Row) -> NetworkDescription:
        """Describe a network without operators; the name tells it from listed ones."""
        name = _name(row.key)
        if row.key in self._lists:
            name += f"-{row.parameters:g}M"
            reason = "another number of parameters than in the lists: another architecture"
        else:
            reason = "no list has their architecture and size"
        if self._lists:
            self._published.mark("without a list of operators", reason, row.location, name)
        return NetworkDescription(
            name, row.key.architecture, image_size=row.key.size,
            parameters=round(row.parameters * 1e6),
        )  # fmt: skip


def _name(key: _Key, reparameterised: bool = False) -> str:
    return f"{key.architecture}-{key.size}" + "-reparameterised" * reparameterised


def _read_lists(files: Sequence[ForeignFile]) -> dict[_Key, list[NetworkDescription]]:
    """Read lists of operators, one network per line.

    Raises
    ------
    DatasetError
        If a line is no list of operators.
    """
    lists: dict[_Key, list[NetworkDescription]] = defaultdict(list)
    for file in files:
        for number, line in enumerate(file.text.splitlines(), 1):
            try:
                values = parse_json(line)
                if values["ok"]:
                    described = _listed(values)
                    lists[_Key(described.architecture, described.image_size or 0)].append(described)
            except (ValueError, TypeError, LookupError) as error:
                raise DatasetError(
                    f"{file.name} line {number} is no list of operators ({first_line(error)})"
                ) from error
    return dict(lists)


def _listed(values: Mapping[str, Any]) -> NetworkDescription:
    operators = tuple(_operator(operator) for operator in values["ops"])
    key, merged = _Key(str(values["model"]), int(values["size"])), bool(values["reparameterised"])
    # The first image of a network is its input.
    images = (
        tensor.shape[0]
        for operator in operators
        for tensor in operator.inputs
        if len(tensor.shape) == 4 and not tensor.is_weight
    )
    return NetworkDescription(
        _name(key, merged),
        key.architecture,
        str(values["module"]),
        image_size=key.size,
        batch=next(images, None),
        parameters=int(values["params"]),
        reparameterised=merged,
        operators=operators,
    )


def _operator(values: Sequence[Any]) -> ListedOperator:
    op, inputs, outputs, attributes, count = values
    return ListedOperator(
        str(op),
        tuple(
            ListedTensor(tuple(shape), _type_name(code), bool(is_weight))
            for shape, code, is_weight in inputs
        ),
        tuple(ListedTensor(tuple(shape), _type_name(code)) for shape, code in outputs),
        attributes,
        int(count),
    )


@cache
def _type_name(code: str) -> str:
    # Called half a million times for four types, NumPy takes a quarter of the import.
    return np.dtype(code).name
