"""Find the rows of a dataset that are layers of given networks, to exclude them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resperf.dataset import read_info, read_table
from resperf.layers import key_at_any_batch
from resperf.lowering import lower
from resperf.network import networks_at

BATCHES = (1, 8)
"""At batch 1 a layer may have another key; for larger batches only the batch differs."""


def keys_of_networks(datasets: Sequence[Path], networks: Sequence[Path]) -> frozenset[str]:
    """Find the keys in datasets that are layers of networks, at any batch size.

    Parameters
    ----------
    datasets : sequence of Path
    networks : sequence of Path
        ONNX files; they are lowered for each dataset's machine.

    Raises
    ------
    NetworkError, ShapeError, UnsupportedError
        If a network cannot be read or lowered.
    DatasetError
        If a dataset cannot be read.
    """
    if not networks:
        return frozenset()
    return frozenset().union(*(_keys_in(dataset, networks) for dataset in datasets))


def _keys_in(dataset: Path, networks: Sequence[Path]) -> frozenset[str]:
    info = read_info(dataset)
    wanted = {
        key_at_any_batch(node.layer.key)
        for path in networks
        for network in networks_at(path, BATCHES)
        for node in lower(network, info.setting, info.platform).nodes
        if node.layer is not None
    }
    return frozenset(
        str(key)
        for table in read_table(dataset).values()
        for key in table.key
        if key_at_any_batch(str(key)) in wanted
    )
