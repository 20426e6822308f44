"""What the nodes of a cluster of Ray's have, and how fast they sum gradients between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from resperf.campaign import on_ray
from resperf.campaign.remote import NodeActor
from resperf.devices import canonical_device
from resperf.devices.cluster import Cluster, Link, Node
from resperf.errors import ResperfError, require
from resperf.nvml import gpus
from resperf.platform import container_cores, container_memory_bytes, usable_cores
from resperf.predictors.linear import fit_coefficients

PRODUCT_S, PRODUCT_SIDE = 0.3, 1024
"""How long products of float32 matrices of that side are timed for a processor's speed."""
LOAD_S = 0.5
"""How long the load of other programs is watched."""
EXCHANGED_BYTES = (1_000_000, 25_000_000, 100_000_000)
"""Small networks' gradients, a bucket of DistributedDataParallel's, and those of ResNet-50."""
EXCHANGES, WARMUPS = 5, 2


def _product_flops_per_s() -> float:
    """Time float32 products with all cores, as numpy's library runs them.

    The fastest counts: others wait for other programs, which `Node.load` takes into account.
    """
    matrix = np.ones((PRODUCT_SIDE, PRODUCT_SIDE), np.float32)
    times_s: list[float] = []
    while sum(times_s) < PRODUCT_S:
        start = time.perf_counter()
        _ = matrix @ matrix
        times_s.append(time.perf_counter() - start)
    return 2.0 * PRODUCT_SIDE**3 / min(times_s)


class NodeSurvey(NodeActor):
    """Runs on a node: says what it has, and takes part in exchanges."""

    @on_ray.replying
    def facts(self, has_gpus: bool) -> dict[str, Any]:
        """Return the fields of a `Node` as far as they are known."""
        psutil = require("psutil", "bench")
        load = psutil.cpu_percent(LOAD_S) / 100
        memory, cores = psutil.virtual_memory(), psutil.cpu_count()
        ram_bytes = min(memory.total, container_memory_bytes() or memory.total)
        packages = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
        cards = gpus() if has_gpus else []
        if len({card.name for card in cards}) > 1:
            raise ResperfError(f"GPUs of several kinds: {', '.join(card.name for card in cards)}")
        of_device: dict[str, Any] = {"flops_per_s": _product_flops_per_s()}
        if cards:
            of_device = {"device": canonical_device(cards[0].name), "devices": len(cards),
                         "gpu_memory_bytes": cards[0].memory_bytes or None}  # fmt: skip
        return {
            **of_device,
            "sockets": len({path.read_text() for path in packages}) or None,
            "cores": cores,
            "cores_available": float(min(usable_cores(), container_cores() or cores)),
            "ram_bytes": ram_bytes,
            "ram_available_bytes": min(memory.available, ram_bytes),
            "load": load,
        }

    @on_ray.replying
    def exchange_s(
        self, rank: int, ranks: int, address: str, on_gpu: bool, sizes_bytes: Sequence[int]
    ) -> list[float]:
        """Sum float32 values of so many bytes with the other nodes; return the median times."""
        distributed = require("torch.distributed", "torch")
        torch = require("torch", "torch")
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo", init_method=address, rank=rank, world_size=ranks
        )
        times_s = []
        for size_bytes in sizes_bytes:
            values = torch.zeros(size_bytes // 4, device="cuda" if on_gpu else "cpu")
            taken = []
            for _ in range(WARMUPS + EXCHANGES):
                distributed.barrier()
                start = time.perf_counter()
                distributed.all_reduce(values)
                if on_gpu:
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
            times_s.append(median(taken[WARMUPS:]))
        distributed.destroy_process_group()
        return times_s


def survey(address: str, *, exchange: bool = False) -> Cluster:
    """Describe a cluster of Ray's.

    Parameters
    ----------
    address : str
        As of `on_ray.connected`.
    exchange : bool
        Measure all-reduces between all nodes as well, for `Cluster.between`.

    Raises
    ------
    ResperfError
        If there is no such cluster, a node is gone meanwhile, or no network is between its nodes.
    """
    with on_ray.connected(address), ExitStack() as stack:
        surveys = [on_ray.Actor(NodeSurvey, node) for node in on_ray.nodes()]
        if not surveys:
            raise ResperfError("the cluster has no node with processors for work; add one")
        for actor in surveys:
            stack.callback(actor.end)
        has_gpus = [[actor.node.gpus > 0] for actor in surveys]
        facts_of = on_ray.call_all(surveys, "facts", has_gpus)
        hosts = [actor.node.host for actor in surveys]
        names = [host if hosts.count(host) == 1 else f"{host}-{number}"
                 for number, host in enumerate(hosts)]  # fmt: skip
        nodes = [Node(name=name, **facts) for name, facts in zip(names, facts_of, strict=True)]
        source = "measured by resperf cluster; processors by float32 products of numpy"
        cluster = Cluster(name="ray", nodes=tuple(nodes), source=source)
        if not exchange:
            return cluster
        machines = set(on_ray.call_all(surveys, "machine"))
        if len(machines) < max(2, len(surveys)):
            raise ResperfError(
                f"{len(surveys)} nodes on {len(machines)} machine: what is exchanged inside a "
                "machine crosses no network; --exchange needs nodes on machines of their own"
            )
        return replace(
            cluster, between=exchanged(surveys, on_gpu=all(node.device for node in nodes))
        )


def exchanged(surveys: Sequence[on_ray.Actor], *, on_gpu: bool) -> Link:
    """Measure all-reduces of one device of each node; `surveys` are actors of `NodeSurvey`."""
    port = surveys[0].call("free_port")
    address = f"tcp://{surveys[0].node.address}:{port}"
    ranks = len(surveys)
    arguments = [(rank, ranks, address, on_gpu, EXCHANGED_BYTES) for rank in range(ranks)]
    times_s = np.max(on_ray.call_all(surveys, "exchange_s", arguments), axis=0)
    return fitted_link(times_s, EXCHANGED_BYTES, ranks, "nccl" if on_gpu else "gloo")


def fitted_link(
    times_s: Sequence[float], sizes_bytes: Sequence[int], ranks: int, library: str
) -> Link:
    """Fit a link to all-reduces: latency x log2(n) + 2 (n - 1) / n x bytes / bandwidth.

    Parameters
    ----------
    times_s, sizes_bytes : sequence (exchanges,)
    ranks : int
        Devices n that took part.
    library : str
        That ran them.
    """
    sizes = ", ".join(f"{size_bytes / 1e6:g}" for size_bytes in sizes_bytes)
    steps, share = np.log2(ranks), 2 * (ranks - 1) / ranks
    terms = np.array([[steps, share * size_bytes] for size_bytes in sizes_bytes])
    latency_s, byte_s = fit_coefficients(terms, np.array(times_s), non_negative=False)
    return Link(
        name=f"{library} between {ranks} nodes",
        latency_s=max(float(latency_s), 1e-8),
        bandwidth_bytes_per_s=float(1 / byte_s),
        devices_per_nic=1,
        source=f"measured: all-reduces of {sizes} MB",
    )
