"""Which rows of a dataset are layers of given networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from resperf.dataset import read_info, read_table
from resperf.lowering import lower
from resperf.network import read_network

_BATCH = re.compile(r"\bbatch=\d+,")


def keys_of_networks(dataset: Path, networks: Sequence[Path]) -> frozenset[str]:
    """Find the keys in a dataset that are layers of networks, at whatever batch size.

    Parameters
    ----------
    dataset : Path
    networks : sequence of Path
        ONNX files; they are lowered for the dataset's machine.

    Raises
    ------
    NetworkError, UnsupportedError
        If a network cannot be read or lowered.
    DatasetError
        If the dataset cannot be read.
    """
    if not networks:
        return frozenset()
    fingerprint = read_info(dataset).fingerprint
    wanted = {
        _without_batch(node.layer.key)
        for path in networks
        for node in lower(read_network(path, batch=1), fingerprint).nodes
        if node.layer is not None
    }
    return frozenset(
        str(key)
        for table in read_table(dataset).values()
        for key in table.key
        if _without_batch(str(key)) in wanted
    )


def _without_batch(key: str) -> str:
    return _BATCH.sub("", key)
