"""One of the processes that share a training step by DistributedDataParallel.

Run by torchrun (`resperf.backends._torch_team`). Process 0 reads questions from a socket and
broadcasts them; every process does the same work, a sample begins behind a barrier, and the time of
the slowest counts.

DistributedDataParallel has PyTorch's own defaults: gradients are averaged in buckets of 25 MiB
(the first of 1 MiB) while the backward pass goes on, and the statistics of normalisations are sent
from process 0 before each forward pass.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from resperf.backends._base import Built, Phase
from resperf.backends._torch_devices import Device, Run
from resperf.backends._torch_modules import TorchNetwork, size_bytes
from resperf.backends.torch import TorchBackend
from resperf.errors import ResperfError, UnsupportedError
from resperf.timing import Sampler

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Gradients that DistributedDataParallel exchanges at once: those that are ready first, others."""
PATIENCE = timedelta(days=1)
"""How long a process waits for the next question."""


def buckets(sizes_bytes: Sequence[int]) -> list[int]:
    """Return the bytes of each exchange of gradients, as DistributedDataParallel makes them.

    Parameters
    ----------
    sizes_bytes : sequence of int
        Of the weights, in the network's order; gradients of the last are ready first.
    """
    full_buckets: list[int] = []
    filled = 0
    for size in reversed(sizes_bytes):
        filled += size
        if filled >= (BUCKET_BYTES if full_buckets else FIRST_BUCKET_BYTES):
            full_buckets.append(filled)
            filled = 0
    return [*full_buckets, filled] if filled else full_buckets


class _Together:
    """A device on which no process begins to time before all are ready."""

    def __init__(self, alone: Device, hosts: Any) -> None:
        self._alone, self._hosts = alone, hosts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._alone, name)

    def run_timer(self, run: Run, before: Run | None = None) -> Sampler:
        """Time work that all processes start at once."""

        def ready() -> None:
            if before is not None:
                before()
            distributed.barrier(group=self._hosts)

        return self._alone.run_timer(run, ready)


class Member(TorchBackend):
    """The backend of one process, which joins the others.

    Attributes
    ----------
    hosts : ProcessGroup
        All processes, by way of their hosts' memory.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        distributed.init_process_group(self._device.libraries, timeout=PATIENCE)
        self.hosts = distributed.new_group(backend="gloo", timeout=PATIENCE)
        self._device = cast("Device", _Together(self._device, self.hosts))
        self._alone: tuple[TorchNetwork, Sequence[Any]] | None = None

    def own_process(self) -> None:
        """Do nothing: each process measures by itself anyway."""

    def _trained_network(self, module: TorchNetwork, whole: Any, inputs: Sequence[Any]) -> Built:  # noqa: ARG002 -- compiled by nobody
        """Build a network in this process alone, as far as that goes."""
        weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        outputs = [output for output in module(*inputs) if output.requires_grad]
        if not outputs:
            raise UnsupportedError("PyTorch computes no gradient of its results")
        gradients = torch.autograd.grad(
            outputs, weights, [torch.ones_like(output) for output in outputs], allow_unused=True
        )
        for weight, gradient in zip(weights, gradients, strict=True):
            # DistributedDataParallel would wait for it forever.
            weight.requires_grad_(gradient is not None)
        self._alone = module, inputs
        return Built({}, lambda: 0.0, module.free)

    def together(self) -> Built:
        """Build the training step of all processes of the network that each has built alone."""
        assert self._alone is not None
        module, inputs = self._alone
        self._alone = None
        # Constants of the file, such as shapes, are no statistics.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            module,
            [name for name, buffer in module.named_buffers()
             if not (buffer.is_floating_point() and buffer.ndim)],
        )  # fmt: skip
        built = super()._trained_network(module, DistributedDataParallel(module), inputs)
        weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        peak, copied_bytes = built.phases["peak_memory_bytes"], size_bytes(weights)
        phases = {
            **built.phases,
            # The buckets are there all the time, and nobody counts them.
            "peak_memory_bytes": replace(peak, sampler=lambda: peak.sampler() + copied_bytes),
            "allreduce_ms": Phase(self._device.run_timer(self._exchange_of(weights))),
        }
        return Built(phases, built.isolated, built.free)

    def _exchange_of(self, weights: Sequence[Any]) -> Run:
        """Return what sums as many bytes as the gradients have, in the same pieces."""
        dtype = weights[0].dtype
        pieces = [
            torch.zeros(size // dtype.itemsize, dtype=dtype, device=self._device.torch_device)
            for size in buckets([size_bytes([weight]) for weight in weights])
        ]

        def exchange() -> None:
            waiting = [distributed.all_reduce(piece, async_op=True) for piece in pieces]
            for work in waiting:
                work.wait()

        return exchange


def _answers(member: Member, pipe: Any) -> None:
    """Answer questions until there are no more; only process 0 has the pipe."""
    hosts = member.hosts
    built = Built({}, lambda: 0.0)
    while True:
        asked: list[Any] = [None if pipe is None else pipe.recv()]
        distributed.broadcast_object_list(asked, src=0, group=hosts)
        question, *arguments = asked[0]
        answer: Any = None
        error: Exception | None = None
        if question == "build":
            error = _error_of_building(member, *arguments)
            if error is None:
                built = member.together()
                answer = {name: phase.unit for name, phase in built.phases.items()}
        elif question == "sample":
            value = torch.tensor(built.phases[arguments[0]].sampler(), dtype=torch.float64)
            distributed.all_reduce(value, distributed.ReduceOp.MAX, group=hosts)
            answer = float(value)
        else:
            built.close()
        if pipe is not None:
            pipe.send((error, answer))


def _error_of_building(
    member: Member, path: Path, batch: int | None, shapes: Any, content: bytes
) -> Exception | None:
    """Build a network alone in each process; return the first error of any of them.

    Its `content` is given where not all processes have the file.
    """
    built, mine = None, None
    try:
        with TemporaryDirectory() as folder:
            if content:
                path = Path(folder) / path.name
                path.write_bytes(content)
            built = member.network(path, batch=batch, shapes=shapes)
    except (ResperfError, MemoryError) as error:
        mine = error
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, mine, group=member.hosts)
    first_error: Exception | None = next(filter(None, every), None)
    if first_error is not None and built is not None:
        built.close()
    return first_error


@record  # type: ignore[untyped-decorator]  # torch is not typed here
def main(settings: str, address: str) -> None:
    """Join the others, and answer until the measuring process ends."""
    given = json.loads(settings)
    member = Member(**{**given, "device": given["device"] + os.environ["LOCAL_RANK"]})
    pipe = Client(address, "AF_UNIX") if distributed.get_rank() == 0 else None
    # The measuring process closes the pipe; the others end with process 0.
    with suppress(EOFError):
        _answers(member, pipe)
