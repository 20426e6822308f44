"""Sessions of ONNX Runtime as phases: what is bound, run and freed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnxruntime

from resperf.backends._base import Built, Phase
from resperf.backends._values import network_input
from resperf.errors import MeasurementError, UnsupportedError, first_line
from resperf.timing import WallClock

_NO_MEMORY = ("bad_alloc", "Failed to allocate", "out of memory")


@dataclass(frozen=True)
class Place:
    """Where values are: in the host's memory, or in a GPU's.

    Attributes
    ----------
    device : str
        ONNX Runtime's word: ``"cpu"`` or ``"cuda"``.
    number : int
    """

    device: str = "cpu"
    number: int = 0

    @property
    def is_host(self) -> bool:
        """Whether host arrays need no copy."""
        return self.device == "cpu"

    def value(self, array: npt.NDArray[Any]) -> Any:
        """Make a value of a host array: shared on the host, copied to a GPU."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self.device, self.number)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Make a value without content."""
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, np.dtype(dtype), self.device, self.number
        )


HOST = Place()


class _Inputs:
    """Host arrays and their values on the device, bound to a session."""

    def __init__(self, binding: Any, arrays: Mapping[str, npt.NDArray[Any]], place: Place) -> None:
        self._binding, self._arrays, self._place = binding, arrays, place
        self._values: dict[str, Any] = {}
        self.bind()

    def bind(self) -> None:
        """Make values of the arrays and bind them."""
        for name, array in self._arrays.items():
            self._values[name] = self._place.value(array)
            self._binding.bind_ortvalue_input(name, self._values[name])

    def copy(self, names: Sequence[str] | None = None) -> None:
        """Give the arrays to the session again: into the same memory of a GPU, to its end."""
        for name in self._arrays if names is None else names:
            if self._place.is_host:
                self._values[name] = self._place.value(self._arrays[name])
                self._binding.bind_ortvalue_input(name, self._values[name])
            else:
                self._values[name].update_inplace(self._arrays[name])
        if not self._place.is_host:
            self._binding.synchronize_inputs()


def _runner(session: Any, binding: Any, place: Place) -> Callable[[], object]:
    """Return what runs a bound session to its end."""
    run: Callable[[], object] = partial(session.run_with_iobinding, binding)
    if place.is_host:
        return run

    def run_to_its_end() -> None:
        run()
        binding.synchronize_outputs()

    return run_to_its_end


def as_resperf_error(error: Exception, name: str) -> BaseException:
    """Turn what ONNX Runtime raised into an error of ours, or a lack of memory into MemoryError."""
    text = first_line(error)
    if any(words in text for words in _NO_MEMORY):
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
        place: Place = HOST,
    ) -> None:
        self._binding = session.io_binding()
        self._inputs: _Inputs | None = _Inputs(self._binding, dict(host), place)
        self._binding.bind_ortvalue_output(output, place.empty(output_shape, output_dtype))
        self.run = _checked(_runner(session, self._binding, place), output)

    def preprocess(self) -> None:
        """Make a device value of the host's array and hand it to the session."""
        if self._inputs is None:
            _freed()
        else:
            self._inputs.copy(("x",))

    def postprocess(self) -> object:
        """Make a host array of the output's device value."""
        return [value.numpy() for value in self._binding.get_outputs()]

    def close(self) -> None:
        """Free the session and its weights."""
        self.run = _freed
        self._binding, self._inputs = None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def network_phases(
    session: Any, feeds: Mapping[str, npt.NDArray[Any]], place: Place = HOST
) -> Built:
    """Make the three phases of a whole network from its session and host arrays by input name."""
    binding = session.io_binding()
    outputs = [value.name for value in session.get_outputs()]
    for name in outputs:
        binding.bind_output(name, place.device, place.number)

    def postprocess() -> list[npt.NDArray[Any]]:
        return [value.numpy() for value in binding.get_outputs()]

    inputs = _Inputs(binding, feeds, place)
    execute = _checked(_runner(session, binding, place), "the network")
    if not place.is_host:
        # A CUDA graph writes to the memory of its first run.
        for name, value in zip(outputs, binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, value)
    run = WallClock(execute)
    return Built.of_phases(WallClock(inputs.copy), Phase(run), WallClock(postprocess), run)


def filled_input(value: Any) -> npt.NDArray[Any]:
    """Make values of a session's input."""
    word = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(word, word)
    return network_input(value.name, value.shape, dtype, value.type)
