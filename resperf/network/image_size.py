"""The shape of a network's only image at another height and width."""

from __future__ import annotations

from pathlib import Path

from resperf.errors import ShapeError
from resperf.network.inputs import declared_dims
from resperf.network.model import stripped_model

_CHANNELS = (1, 3, 4)
"""Numbers of channels by which an image with channels last is told."""


def shape_of_image(path: Path, size: int, batch: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shape of a network's image input with both sides of this size.

    Parameters
    ----------
    path : Path
        ONNX file.
    size : int
        Height and width in pixels.
    batch : int, optional
        Used where the file leaves the batch size free.

    Returns
    -------
    dict
        Name of the input -> shape, as `resperf.network.read_network` takes it.

    Raises
    ------
    NetworkError
        If the file cannot be read as a network.
    ShapeError
        If it has not exactly one input of four axes, or its batch size or channels are not known.
    """
    graph = stripped_model(path).graph
    weights = {each.name for each in graph.initializer}
    weights |= {each.values.name for each in graph.sparse_initializer}
    dims = {
        info.name: declared_dims(path, info) for info in graph.input if info.name not in weights
    }
    images = {name: own for name, own in dims.items() if own is not None and len(own) == 4}
    if len(images) != 1:
        found = f"{len(images)} inputs" if images else "no input"
        raise ShapeError(
            f"{path} has {found} of four axes, of which --image-size needs one; give the shapes of "
            f"its inputs ({', '.join(dims) or 'none'}) with --shape NAME=N,N,..."
        )
    [(name, [first, *sides])] = images.items()
    first = first if isinstance(first, int) else batch
    last = sides[-1] in _CHANNELS and sides[0] not in _CHANNELS
    channels = sides[-1] if last else sides[0]
    if first is None or not isinstance(channels, int):
        what = "batch size: give --batch" if first is None else "number of channels: give --shape"
        raise ShapeError(f"{path}: input {name!r} has no {what}")
    return {name: (first, size, size, channels) if last else (first, channels, size, size)}
