"""ONNX Runtime on a CUDA device, by its CUDA provider.

The phases are those of `resperf.backends.onnxruntime`, with input and output in the device's
memory: preprocess copies host arrays (pageable memory) into the values bound to the session,
execution ends when the session has synchronised the device, postprocess copies the output to the
host.

Every node must run on that provider. ONNX Runtime runs nodes that it cannot place, or all of them
if the provider does not start, on the CPU without an error; each session is asked which provider
got which node, and nodes on another one are an error that names them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import onnxruntime

from resperf.backends._base import check_choices, usable_threads
from resperf.backends.onnxruntime import Device, OnnxRuntimeBackend
from resperf.errors import ResperfError, UnsupportedError, first_line
from resperf.layers import Layer
from resperf.settings import Setting
from resperf.targets import device_number

CUDA = "CUDAExecutionProvider"
PRECISIONS = ("fp32", "tf32", "fp16")
"""The first is the default."""
CONV_SEARCH = "EXHAUSTIVE"
"""How cuDNN chooses a convolution's algorithm: the provider's own default, which users get."""
NAMED_NODES = 5
_ASSIGNMENT = "session.record_ep_graph_assignment_info"


class OnnxRuntimeCudaBackend(OnnxRuntimeBackend):
    """ONNX Runtime with its CUDA provider.

    Parameters
    ----------
    threads : int, optional
        Threads of the host; by default one per usable core.
    device : str
        ``"cuda:0"`` is the first GPU.
    precision : {"", "fp32", "tf32", "fp16"}
        In what float32 values are computed: ``fp32`` by default, ``tf32`` rounds the inputs of
        products. With ``fp16``, layers are float16; a network's file must be.

    Raises
    ------
    ResperfError
        If the installed ONNX Runtime does not have the provider, or it does not start.
    """

    half_precision = True

    def __init__(
        self, *, threads: int | None = None, device: str = "cuda:0", precision: str = ""
    ) -> None:
        self.threads = usable_threads(threads or None)
        self.word, self._block = device, 0
        if device.casefold().partition(":")[0] != "cuda":
            raise ResperfError(f"device={device} is no CUDA device; give cuda:0")
        self.device = Device("cuda", device_number(device))
        self._precision = precision or PRECISIONS[0]
        check_choices("ONNX Runtime on CUDA", precision=(self._precision, PRECISIONS))
        self._options = {
            "use_tf32": str(int(self._precision == "tf32")),
            "cudnn_conv_algo_search": CONV_SEARCH,
        }
        _check_installed()

    def setting(self) -> Setting:
        """How ONNX Runtime runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=onnxruntime.__version__,
            provider=CUDA,
            threads=self.threads,
            precision=self._precision,
            layout="nchw",
            options={"execution_mode": "sequential", "inter_op_threads": "1", **self._options},
        )

    def overheads_between_layers(self) -> Mapping[str, float]:
        """Measure nothing: a GPU's layers contain what they cost behind each other."""
        return {}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Take from each layer what the CUDA provider does not fuse into it."""
        from resperf.lowering.onnxruntime_cuda import lower_layers

        return lower_layers(layers, self.setting())

    def _started(self, model: bytes, options: Any) -> Any:
        """Start a session and check that the provider runs all of its nodes."""
        options.add_session_config_entry(_ASSIGNMENT, "1")
        own = {"device_id": str(self.device.number), **self._options}
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=[(CUDA, own)], enable_fallback=0
            )
        except Exception as error:
            if any(word in str(error) for word in ("CUDA failure 100", "driver")):
                raise ResperfError(_not_started(first_line(error).rpartition(") ")[2])) from error
            raise
        if CUDA not in session.get_providers():
            raise ResperfError(_not_started("it would run on the CPU"))
        _check_nodes(session)
        return session


def _check_installed() -> None:
    """Say what to install if the provider is not part of the installed ONNX Runtime."""
    version = onnxruntime.__version__
    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()
    available = onnxruntime.get_available_providers()
    if CUDA not in available:
        raise ResperfError(
            f"ONNX Runtime {version} here has no {CUDA}, but {', '.join(available)}; put the "
            "GPU build over it, which has CPUs too: pip install --force-reinstall --no-deps "
            f"onnxruntime-gpu=={version}"
        )
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise ResperfError(
            f"ONNX Runtime {version} does not say which provider runs which node; install "
            "onnxruntime-gpu 1.24 or later"
        )


def _not_started(why: str) -> str:
    """Say that the provider's libraries are missing, or the GPU."""
    return (
        f"ONNX Runtime's {CUDA} did not start ({why}); nvidia-smi must list the GPU, and the "
        "libraries of CUDA and cuDNN must be found: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def _check_nodes(session: Any) -> None:
    """Refuse a session of which another provider runs a node.

    Raises
    ------
    UnsupportedError
        Names the nodes.
    """
    elsewhere = [
        f"{node.op_type} {node.name!r} on {part.ep_name}"
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != CUDA
        for node in part.get_nodes()
    ]
    if elsewhere:
        more = f" and {len(elsewhere) - NAMED_NODES} more" if len(elsewhere) > NAMED_NODES else ""
        raise UnsupportedError(
            f"{CUDA} does not run all nodes: {', '.join(elsewhere[:NAMED_NODES])}{more}; "
            "resperf does not measure a network of which a part runs elsewhere"
        )
