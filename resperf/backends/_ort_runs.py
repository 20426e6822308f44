"""Sessions of ONNX Runtime: what is bound, run and copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from resperf.backends._base import as_resperf_error
from resperf.backends._values import network_input


@dataclass(frozen=True)
class Device:
    """Where values are: in the host's memory, or in a GPU's.

    Attributes
    ----------
    kind : str
        ONNX Runtime's word: ``"cpu"`` or ``"cuda"``.
    number : int
    """

    kind: str = "cpu"
    number: int = 0

    @property
    def is_host(self) -> bool:
        """Whether host arrays need no copy."""
        return self.kind == "cpu"

    def value(self, array: npt.NDArray[Any]) -> Any:
        """Make a value of a host array: shared on the host, copied to a GPU."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self.kind, self.number)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Make a value without content."""
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, np.dtype(dtype), self.kind, self.number
        )


HOST = Device()


class BoundSession:
    """A session whose inputs and outputs are bound; it ran once, so that what cannot run says so.

    Parameters
    ----------
    session : InferenceSession
    host : mapping of str to array
        Values of the inputs.
    name : str
        For messages.
    device : Device
    output : tuple of (shape, dtype), optional
        Of the only output, which is then written to the same memory by each run. Else ONNX Runtime
        allocates outputs: on a GPU once, since a CUDA graph writes to the memory of its first run.
    """

    def __init__(
        self,
        session: Any,
        host: Mapping[str, npt.NDArray[Any]],
        name: str,
        device: Device = HOST,
        output: tuple[Sequence[int], str] | None = None,
    ) -> None:
        self._session, self._host, self._device = session, host, device
        self._binding = session.io_binding()
        self._values: dict[str, Any] = {}
        for input_name, array in host.items():
            self._bind(input_name, array)
        outputs = [value.name for value in session.get_outputs()]
        for output_name in outputs:
            if output is None:
                self._binding.bind_output(output_name, device.kind, device.number)
            else:
                self._binding.bind_ortvalue_output(output_name, device.empty(*output))
        try:
            self.run()
        except Exception as error:  # onnxruntime's errors have no common root of their own
            raise as_resperf_error(error, "ONNX Runtime", name) from error
        if not device.is_host:
            for output_name, value in zip(outputs, self._binding.get_outputs(), strict=True):
                self._binding.bind_ortvalue_output(output_name, value)

    def _bind(self, name: str, array: npt.NDArray[Any]) -> None:
        self._values[name] = self._device.value(array)
        self._binding.bind_ortvalue_input(name, self._values[name])

    def run(self) -> None:
        """Run the session to its end."""
        self._session.run_with_iobinding(self._binding)
        if not self._device.is_host:
            self._binding.synchronize_outputs()

    def preprocess(self, names: Sequence[str] | None = None) -> None:
        """Give the host's arrays to the session again: into the same memory of a GPU, to its end.

        Parameters
        ----------
        names : sequence of str, optional
            Of the inputs; all by default.
        """
        for name in self._host if names is None else names:
            if self._device.is_host:
                self._bind(name, self._host[name])
            else:
                self._values[name].update_inplace(self._host[name])
        if not self._device.is_host:
            self._binding.synchronize_inputs()

    def postprocess(self) -> list[npt.NDArray[Any]]:
        """Make host arrays of the outputs' device values."""
        return [value.numpy() for value in self._binding.get_outputs()]


def filled_input(value: Any, given: Mapping[str, Sequence[float]]) -> npt.NDArray[Any]:
    """Make values of a session's input, or repeat those that are given."""
    word = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(word, word)
    values = network_input(value.name, value.shape, dtype, value.type)
    own = np.asarray(given.get(value.name, values), values.dtype)
    return np.resize(own, values.shape)
