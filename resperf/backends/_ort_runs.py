"""Sessions of ONNX Runtime as phases: what is bound, run and freed."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnxruntime

from resperf.backends._base import Built, Phase
from resperf.errors import MeasurementError, UnsupportedError, first_line
from resperf.timing import WallClock

_BLOCK = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32) * np.float32(0.05)
_HUGE_BYTES = 1 << 22
"""From here on numpy asks for huge pages."""
# All pages at once: one fault for each would take longer than filling them.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


def as_resperf_error(error: Exception, name: str) -> BaseException:
    """Turn what ONNX Runtime raised into an error of ours, or a lack of memory into MemoryError."""
    text = first_line(error)
    if "bad_alloc" in text or "Failed to allocate" in text:
        return MemoryError(f"{name} does not fit into memory: {text}")
    return UnsupportedError(f"ONNX Runtime cannot run {name}: {text}")


def _checked(run: Callable[[], object], name: str) -> Callable[[], object]:
    """Run once, so that what cannot run says so before it is timed."""
    try:
        run()
    except Exception as error:  # onnxruntime's errors have no common root of their own
        raise as_resperf_error(error, name) from error
    return run


def _freed() -> None:
    raise MeasurementError("copies that were freed cannot be run; build them again")


class Copies:
    """A session of copies of one kernel, its input and output bound."""

    def __init__(
        self,
        session: Any,
        host: Mapping[str, npt.NDArray[Any]],
        output: str,
        output_shape: tuple[int, ...],
        output_dtype: str,
    ) -> None:
        self._binding = session.io_binding()
        self._host = dict(host)
        for name in self._host:
            self._bind(name)
        self._binding.bind_ortvalue_output(
            output,
            onnxruntime.OrtValue.ortvalue_from_shape_and_type(output_shape, np.dtype(output_dtype)),
        )
        self.run = _checked(partial(session.run_with_iobinding, self._binding), output)

    def _bind(self, name: str) -> None:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(self._host[name])
        self._binding.bind_ortvalue_input(name, value)

    def preprocess(self) -> None:
        """Make a device value of the host's array and hand it to the session."""
        self._bind("x")

    def postprocess(self) -> object:
        """Make a host array of the output's device value."""
        return [value.numpy() for value in self._binding.get_outputs()]

    def close(self) -> None:
        """Free the session and its weights."""
        self.run = _freed
        self._binding, self._host = None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def network_phases(session: Any, feeds: Mapping[str, npt.NDArray[Any]]) -> Built:
    """Make the three phases of a whole network from its session and host arrays by input name."""
    binding = session.io_binding()
    outputs = [value.name for value in session.get_outputs()]
    for name in outputs:
        binding.bind_output(name, "cpu")

    def preprocess() -> None:
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def postprocess() -> list[npt.NDArray[Any]]:
        return [value.numpy() for value in binding.get_outputs()]

    preprocess()
    execute = _checked(partial(session.run_with_iobinding, binding), "the network")
    run = WallClock(execute)
    return Built.of_phases(WallClock(preprocess), Phase(run), WallClock(postprocess), run)


def filled(shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Make an array in memory of its own, without denormal numbers, as fast as memory allows.

    Large ones lie in such pages as ONNX Runtime's own. numpy would ask for huge pages, which the
    kernel does not always have.
    """
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, np.float32)
    if count * _BLOCK.itemsize < _HUGE_BYTES:
        return np.resize(_BLOCK, tuple(shape))
    try:
        pages = mmap.mmap(-1, _BLOCK.itemsize * count, flags=_PRIVATE)
    except OSError as error:
        raise MemoryError(f"no memory for an array of shape {tuple(shape)}: {error}") from error
    values = np.frombuffer(pages, _BLOCK.dtype)
    for start in range(0, count, len(_BLOCK)):
        part = values[start : start + len(_BLOCK)]
        part[:] = _BLOCK[: len(part)]
    return values.reshape(shape)


def made_up(shape: Sequence[int], dtype: str, *, zero_points: bool = False) -> npt.NDArray[Any]:
    """Make an array of any type: floats as `filled`, integers from 1 to 8, alternating booleans.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    zero_points : bool
        A single integer is a zero point, of which 0 is the most common.

    Raises
    ------
    UnsupportedError
        If numpy has no such type.
    """
    if dtype == "float32":
        return filled(shape)
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise UnsupportedError(f"values of type {dtype} cannot be made up on this host") from error
    if kind == np.bool_:
        return np.resize(_BLOCK > 0, tuple(shape))
    if kind.kind in "iu" and zero_points and not shape:
        # Where there is none, kernels are fastest, and few weights have one.
        return np.zeros(shape, kind)
    if kind.kind in "iu":
        return np.resize((np.abs(_BLOCK) * 100 % 8 + 1).astype(kind), tuple(shape))
    return filled(shape).astype(kind)


def filled_input(value: Any) -> npt.NDArray[Any]:
    dtypes = {"float": np.float32, "double": np.float64, "float16": np.float16}
    word = value.type.removeprefix("tensor(").removesuffix(")")
    if word in dtypes:
        return filled(value.shape).astype(dtypes[word], copy=False)
    try:
        # Token numbers, masks: 1 is a valid value of all of them.
        return np.ones(value.shape, np.dtype(word))
    except TypeError as error:
        raise UnsupportedError(
            f"input {value.name!r} holds {value.type}, which cannot be made up"
        ) from error
