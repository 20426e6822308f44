"""TensorRT 10 and 11 on an NVIDIA GPU, in process: how each phase is obtained, and what it holds.

Networks are strongly typed and come from ONNX. Engines exist in memory only. All times but those of
the profiler are between two CUDA events on one stream; host memory is pinned.

preprocess
    Copy of the input to the device.
execution
    Of a layer: the marginal time of its node in an engine that holds several copies of it, each
    with an input tensor, weights and an output of its own. Copies that share no tensor cannot be
    merged, and none can be dropped, because each makes an output of the network; one stream without
    auxiliary ones keeps them in sequence. The engine's layer list is checked after the build: if
    two copies share a kernel, or a copy has none, the layer is refused. All input tensors are
    bound to one buffer, and all outputs to another. TensorRT chooses their formats, so that it
    usually adds no re-layout; the time of those that it does add, and the fixed part of a run
    (`costs`), are subtracted. Of a network: one run, with row-major inputs and outputs.
postprocess
    Copy of the output to the host.
profiled_ms, relayout_ms
    Sums of what TensorRT's profiler reports for the engine's layers, per copy: of the layers, and
    of those that it added to change a format.

A layer that is built again (a campaign's `repeat_share`) is timed anew: TensorRT then does not look
into the timing cache, since the choice of a kernel is part of the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from statistics import median

from resperf.backends._base import (
    Backend,
    Built,
    Phase,
    Shapes,
    check_choices,
    copies_for,
    median_of,
)
from resperf.backends._trt_cuda import Cuda
from resperf.backends._trt_engines import VERSION, Builder, Engine
from resperf.backends._trt_models import copies_model, kernel_of, network_model
from resperf.errors import ResperfError
from resperf.layers import Kernel, Layer
from resperf.lowering import lower_layers
from resperf.settings import Setting
from resperf.timing import Sampler

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
MAX_ENGINE_COPIES = 16
"""Copies in one engine: building takes time for each."""
TINY = Kernel("Relu", "", {}, (1, 16), (1, 16))
TINY_SECONDS = 0.02
_PROFILED_RUNS = 5


class TensorRTBackend(Backend):
    """TensorRT on one GPU.

    Parameters
    ----------
    device : str
        ``"cuda"`` or, with its number, ``"cuda:1"``.
    precision : str
        Types of the layers: ``"fp32"`` (without TF32), ``"tf32"``, ``"fp16"``, ``"bf16"``,
        ``"int8"`` (between QuantizeLinear and DequantizeLinear).
    optimization_level : int
        TensorRT's ``builder_optimization_level``, 0 to 5: how many kernels a build tries.

    Raises
    ------
    ResperfError
        If there is no such GPU or setting, or TensorRT does not support them.
    """

    name = "tensorrt"

    def __init__(
        self, *, device: str = "cuda", precision: str = "fp32", optimization_level: int = 3
    ) -> None:
        precision = precision or "fp32"
        check_choices("TensorRT", precision=(precision, PRECISIONS))
        if not 0 <= optimization_level <= 5:
            raise ResperfError(f"optimization_level={optimization_level} must be from 0 to 5")
        self.word, self._precision = device, precision
        self._optimization_level = optimization_level
        self._cuda = Cuda(device)
        self._builder = Builder(
            self._cuda, tf32=precision == "tf32", optimization_level=optimization_level
        )
        self._built_keys: set[str] = set()

    def setting(self) -> Setting:
        """How TensorRT builds and runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=VERSION,
            precision=self._precision,
            options={"optimization_level": str(self._optimization_level), "aux_streams": "0"},
        )

    @cached_property
    def _call_ms(self) -> float:
        """Time between two events around an engine without layers: intercept over tiny copies."""
        one_ms, many_ms = (self._tiny_ms(copies) for copies in (1, MAX_ENGINE_COPIES))
        return max(one_ms - (many_ms - one_ms) / (MAX_ENGINE_COPIES - 1), 0.0)

    def _tiny_ms(self, copies: int) -> float:
        with ExitStack() as stack:
            engine = self._engine(stack, TINY, copies, "tiny")
            return median_of(self._cuda.timed(engine.enqueue), TINY_SECONDS)

    def costs(self) -> Mapping[str, float]:
        """Measure the fixed part of a run (``call_ms``); once, then kept.

        A change of shape starts no kernel, so that it has no cost (``reshape_ms``).
        """
        return {"call_ms": self._call_ms, "reshape_ms": 0.0}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers that TensorRT's engines have for these."""
        return lower_layers(layers, self.setting(), self.platform())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer: alone, and in several copies.

        Raises
        ------
        UnsupportedError
            If TensorRT cannot run it, or its copies are not apart in the engine.
        MemoryError
            If it does not fit.
        """
        int8 = self._precision == "int8"
        kernel = kernel_of(layer, int8=int8)
        anew = layer.key in self._built_keys
        self._built_keys.add(layer.key)
        with ExitStack() as stack:
            alone = self._engine(stack, kernel, 1, layer.kind, int8=int8, anew=anew)
            run = self._cuda.timed(alone.enqueue)
            copies = copies_for(
                run, self._call_ms, layer.weight_bytes, budget_ms, MAX_ENGINE_COPIES
            )
            many = alone
            if copies > 1:
                many = self._engine(stack, kernel, copies, layer.kind, int8=int8, anew=anew)
            offset_ms = self._call_ms + _relayouts_ms(many)
            timed = self._cuda.timed(many.enqueue)
            execution = Phase(timed, offset=offset_ms, copies=copies)
            return self._phases(alone, execution, many, run, stack.pop_all())

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a whole network; absent weights are made up.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        MemoryError
            If it does not fit.
        """
        model, host = network_model(path, self._precision, batch=batch, shapes=shapes)
        with ExitStack() as stack:
            engine = self._builder.engine(model, path.name, plain_ends=True)
            stack.callback(engine.close)
            engine.load(host)
            run = self._cuda.timed(engine.enqueue)
            return self._phases(engine, Phase(run), engine, run, stack.pop_all())

    def _engine(
        self,
        stack: ExitStack,
        kernel: Kernel,
        copies: int,
        name: str,
        *,
        int8: bool = False,
        anew: bool = False,
    ) -> Engine:
        """Build, check and load an engine of copies, which the stack closes."""
        model, host = copies_model(kernel, copies, int8=int8)
        engine = self._builder.engine(model, f"a {name} layer", anew=anew)
        stack.callback(engine.close)
        engine.check_copies(copies)
        engine.load(host)
        return engine

    def _phases(
        self, ends: Engine, execution: Phase, profiled: Engine, isolated: Sampler, stack: ExitStack
    ) -> Built:
        """Make all phases; the stack frees the engines."""
        copies = execution.copies
        return Built.of_phases(
            self._cuda.timed(ends.preprocess),
            execution,
            self._cuda.timed(ends.postprocess),
            isolated,
            stack.close,
            profiled_ms=Phase(lambda: profiled.profiled_ms()[0], copies=copies),
            relayout_ms=Phase(lambda: profiled.profiled_ms()[1], copies=copies),
        )


def _relayouts_ms(engine: Engine) -> float:
    """Return the time of an engine's re-layouts in one run."""
    if not any(layer.is_relayout for layer in engine.layers):
        return 0.0
    return median(engine.profiled_ms()[1] for _ in range(_PROFILED_RUNS))
