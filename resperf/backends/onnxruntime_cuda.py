"""ONNX Runtime on a CUDA device, by its CUDA provider or its TensorRT provider.

The phases are those of `resperf.backends.onnxruntime`, with input and output in the device's
memory: preprocess copies host arrays (pageable memory) into the values bound to the session,
execution ends when the session has synchronised the device, postprocess copies the output to the
host.

Every node must run on the chosen provider. ONNX Runtime runs nodes that it cannot place, or all of
them if the provider does not start, on the CPU without an error; each session is asked which
provider got which node, and nodes on another one are an error that names them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import onnxruntime

from resperf.backends._base import Built
from resperf.backends._ort_runs import Place
from resperf.backends.onnxruntime import OnnxRuntimeBackend
from resperf.errors import ResperfError, UnsupportedError, first_line
from resperf.layers import Layer
from resperf.platform import Platform, this_platform
from resperf.settings import Setting
from resperf.targets import device_number

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
PROVIDERS: Mapping[str, str] = {"cuda": CUDA, "tensorrt": TENSORRT}
PRECISIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    CUDA: {"fp32": {"use_tf32": "0"}, "tf32": {"use_tf32": "1"}, "fp16": {"use_tf32": "0"}},
    # TensorRT uses TF32 unless the environment forbids it; the provider has no option for it.
    TENSORRT: {
        "tf32": {},
        "fp16": {"trt_fp16_enable": "1"},
        "bf16": {"trt_bf16_enable": "1"},
    },
}
"""Provider -> precision -> options; the first is the default."""
CONV_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
NAMED_NODES = 5
_ASSIGNMENT = "session.record_ep_graph_assignment_info"


class OnnxRuntimeCudaBackend(OnnxRuntimeBackend):
    """ONNX Runtime with its CUDA or TensorRT provider.

    Parameters
    ----------
    threads : int, optional
        Threads of the host; by default one per usable core.
    device : str
        ``"cuda:0"`` is the first GPU.
    precision : {"", "fp32", "tf32", "fp16", "bf16"}
        In what the CUDA provider computes float32 values: ``fp32`` by default, ``tf32`` rounds the
        inputs of products. With ``fp16``, layers are float16; a network's file must be. The
        TensorRT provider has ``tf32`` (its default), ``fp16`` and ``bf16``.
    layout : {"", "nchw", "nhwc"}
        Of images; ``nhwc`` is the CUDA provider's ``prefer_nhwc``, for whole networks.
    provider : {"cuda", "tensorrt"}
    cuda_graph : bool
        Whether the launches of a run are recorded once and replayed.
    conv_search : {"EXHAUSTIVE", "HEURISTIC", "DEFAULT"}
        How the CUDA provider chooses a convolution's algorithm; the first is its own default.

    Raises
    ------
    ResperfError
        If the installed ONNX Runtime does not have the provider, or it does not start.
    """

    half_precision = True

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str = "cuda:0",
        precision: str = "",
        layout: str = "",
        provider: str = "cuda",
        cuda_graph: bool = False,
        conv_search: str = CONV_SEARCHES[0],
    ) -> None:
        self._set_threads(threads)
        self._word, self._block = device, 0
        if device.casefold().partition(":")[0] != "cuda":
            raise ResperfError(f"device={device} is no CUDA device; give cuda:0")
        self.place = Place("cuda", device_number(device))
        self.provider = _one_of("provider", provider, PROVIDERS)
        self.provider = PROVIDERS[self.provider]
        known = PRECISIONS[self.provider]
        self._precision = _one_of("precision", precision or next(iter(known)), known)
        self._layout = _one_of("layout", layout or "nchw", ("nchw", "nhwc"))
        if self.provider == TENSORRT and self._layout == "nhwc":
            raise ResperfError("layout=nhwc is an option of provider=cuda; TensorRT chooses itself")
        self._cuda_graph = cuda_graph
        graph = "enable_cuda_graph" if self.provider == CUDA else "trt_cuda_graph_enable"
        self._options = {**known[self._precision], graph: str(int(cuda_graph))}
        if self.provider == CUDA:
            self._options["cudnn_conv_algo_search"] = _one_of(
                "conv_search", conv_search, CONV_SEARCHES
            )
            self._options["prefer_nhwc"] = str(int(self._layout == "nhwc"))
        _check_installed(self.provider)

    def platform(self) -> Platform:
        """Describe this machine and its GPU."""
        return this_platform(self._word)

    def setting(self) -> Setting:
        """How ONNX Runtime runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=onnxruntime.__version__,
            provider=self.provider,
            threads=self.threads,
            precision=self._precision,
            layout=self._layout,
            cuda_graph=self._cuda_graph,
            options={"execution_mode": "sequential", "inter_op_threads": "1", **self._options},
        )

    def handover(self) -> Mapping[str, float]:
        """Measure nothing: a GPU's layers contain what they cost behind each other."""
        return {}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Take from each layer what the CUDA provider does not fuse into it."""
        from resperf.lowering.onnxruntime_cuda import lower_layers

        return lower_layers(layers, self.setting())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer, as on the CPU.

        Raises
        ------
        UnsupportedError
            If no kernel of the provider runs it.
        MemoryError
            If it does not fit.
        """
        if self.provider == TENSORRT:
            raise UnsupportedError(
                "TensorRT leaves out copies of a layer that nothing reads, so that provider="
                "tensorrt measures whole networks only; measure layers with --framework tensorrt"
            )
        if self._layout == "nhwc":
            raise UnsupportedError(
                "ONNX Runtime runs no single operator in NHWC: layout=nhwc measures whole networks"
            )
        return super().layer(layer, budget_ms=budget_ms)

    def _started(self, model: bytes, options: Any) -> Any:
        """Start a session and check that the provider runs all of its nodes."""
        options.add_session_config_entry(_ASSIGNMENT, "1")
        own = {"device_id": str(self.place.number), **self._options}
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=[(self.provider, own)], enable_fallback=0
            )
        except Exception as error:
            if _did_not_start(error):
                raise ResperfError(
                    _not_started(self.provider, first_line(error).rpartition(") ")[2])
                ) from error
            raise
        if self.provider not in session.get_providers():
            raise ResperfError(_not_started(self.provider, "it would run on the CPU"))
        _check_nodes(session, self.provider)
        return session


def _one_of(what: str, value: str, known: Mapping[str, object] | Sequence[str]) -> str:
    if value not in known:
        raise ResperfError(
            f"{what}={value} does not exist for ONNX Runtime on CUDA; use {', '.join(known)}"
        )
    return value


def _check_installed(provider: str) -> None:
    """Say what to install if the provider is not part of the installed ONNX Runtime."""
    version = onnxruntime.__version__
    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise ResperfError(
            f"ONNX Runtime {version} here has no {provider}, but {', '.join(available)}; put the "
            "GPU build over it, which has CPUs too: pip install --force-reinstall --no-deps "
            f"onnxruntime-gpu=={version}"
        )
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise ResperfError(
            f"ONNX Runtime {version} does not say which provider runs which node; install "
            "onnxruntime-gpu 1.24 or later"
        )


def _did_not_start(error: Exception) -> bool:
    return any(word in str(error) for word in ("TensorRT libraries", "CUDA failure 100", "driver"))


def _not_started(provider: str, why: str) -> str:
    """Say that the provider's libraries are missing, or the GPU."""
    packages = "TensorRT, CUDA and cuDNN" if provider == TENSORRT else "CUDA and cuDNN"
    return (
        f"ONNX Runtime's {provider} did not start ({why}); nvidia-smi must list the GPU, and the "
        f"libraries of {packages} must be found: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def _check_nodes(session: Any, provider: str) -> None:
    """Refuse a session of which another provider runs a node.

    Raises
    ------
    UnsupportedError
        Names the nodes.
    """
    elsewhere = [
        f"{node.op_type} {node.name!r} on {part.ep_name}"
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != provider
        for node in part.get_nodes()
    ]
    if elsewhere:
        more = f" and {len(elsewhere) - NAMED_NODES} more" if len(elsewhere) > NAMED_NODES else ""
        raise UnsupportedError(
            f"{provider} does not run all nodes: {', '.join(elsewhere[:NAMED_NODES])}{more}; "
            "resperf does not measure a network of which a part runs elsewhere"
        )
