"""What the nodes of a cluster of Ray's have, and how fast they sum gradients between them."""

from __future__ import annotations

import time
import timeit
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from resperf.campaign import on_ray
from resperf.devices import canonical_device
from resperf.devices.cluster import Cluster, Link, Node
from resperf.errors import ResperfError, require
from resperf.nvml import gpus
from resperf.platform import container_cores, container_memory_bytes, usable_cores
from resperf.predictors.linear import fit_coefficients

PRODUCTS, PRODUCT_SIDE = 15, 1024
"""Products of float32 matrices of that side, about 0.3 s, tell a processor's speed."""
LOAD_S = 0.5
"""How long the load of other programs is watched."""
EXCHANGED_BYTES = (1_000_000, 25_000_000, 100_000_000)
"""Small networks' gradients, a bucket of DistributedDataParallel's, and those of ResNet-50."""
EXCHANGES, WARMUPS = 5, 2


class NodeSurvey(on_ray.NodeActor):
    """Runs on a node: says what it has, and takes part in exchanges."""

    def facts(self, has_gpus: bool) -> dict[str, Any]:
        """Return the fields of a `Node` as far as they are known."""
        psutil = require("psutil", "bench")
        memory, cores = psutil.virtual_memory(), psutil.cpu_count()
        ram_bytes = min(memory.total, container_memory_bytes() or memory.total)
        packages = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
        cards, load = gpus() if has_gpus else [], psutil.cpu_percent(LOAD_S) / 100
        if len({card.name for card in cards}) > 1:
            raise ResperfError(f"GPUs of several kinds: {', '.join(card.name for card in cards)}")
        if cards:
            device = {"device": canonical_device(cards[0].name), "devices": len(cards),
                      "gpu_memory_bytes": cards[0].memory_bytes or None}  # fmt: skip
        else:
            matrix = np.ones((PRODUCT_SIDE, PRODUCT_SIDE), np.float32)
            # The fastest counts: others wait for other programs, of which `load` tells.
            least_s = min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=PRODUCTS))
            device = {"flops_per_s": 2.0 * PRODUCT_SIDE**3 / least_s}
        return {
            **device,
            "sockets": len({path.read_text() for path in packages}) or None,
            "cores": cores,
            "cores_available": float(min(usable_cores(), container_cores() or cores)),
            "ram_bytes": ram_bytes,
            "ram_available_bytes": min(memory.available, ram_bytes),
            "load": load,
        }

    def exchange_s(self, rank: int, ranks: int, address: str, device: str) -> list[float]:
        """Sum float32 values with the other nodes; return the median time of each size."""
        torch, distributed = require("torch", "torch"), require("torch.distributed", "torch")
        distributed.init_process_group(init_method=address, rank=rank, world_size=ranks)
        times_s = []
        for size_bytes in EXCHANGED_BYTES:
            values, taken_s = torch.zeros(size_bytes // 4, device=device), []
            for _ in range(WARMUPS + EXCHANGES):
                distributed.barrier()
                start = time.perf_counter()
                distributed.all_reduce(values)
                values[0].item()  # Waits for the device.
                taken_s.append(time.perf_counter() - start)
            times_s.append(median(taken_s[WARMUPS:]))
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
        actors = [on_ray.Actor(NodeSurvey, node) for node in on_ray.nodes()]
        for actor in actors:
            stack.callback(actor.end)
        facts_of = on_ray.call_all(actors, "facts", *([actor.node.gpus > 0] for actor in actors))
        hosts = [actor.node.host for actor in actors]
        nodes = [
            Node(name=f"{host}-{number}" if hosts.count(host) > 1 else host, **facts)
            for number, (host, facts) in enumerate(zip(hosts, facts_of, strict=True))
        ]
        source = "measured by resperf cluster; processors by float32 products of numpy"
        cluster = Cluster(name="ray", nodes=tuple(nodes), source=source)
        if not exchange:
            return cluster
        machines = machines_of(actors)
        if machines < max(2, len(actors)):
            raise ResperfError(
                f"{len(actors)} nodes on {machines} machine: what is exchanged inside a "
                "machine crosses no network; --exchange needs nodes on machines of their own"
            )
        on_gpu = all(node.device for node in nodes)
        return replace(cluster, between=exchanged(actors, on_gpu=on_gpu))


def machines_of(actors: Sequence[on_ray.Actor]) -> int:
    """Return of how many machines nodes are."""
    return len({machine for machine, _ in on_ray.call_all(actors, "place")})


def exchanged(actors: Sequence[on_ray.Actor], *, on_gpu: bool) -> Link:
    """Measure all-reduces of one device of each node; `actors` are of `NodeSurvey`."""
    ranks, address = len(actors), f"tcp://{actors[0].call('place')[1]}"
    arguments = [(rank, ranks, address, "cuda" if on_gpu else "cpu") for rank in range(ranks)]
    times_s = np.max(on_ray.call_all(actors, "exchange_s", *arguments), axis=0)
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
    terms = np.array([[np.log2(ranks), 2 * (ranks - 1) / ranks * size] for size in sizes_bytes])
    latency_s, byte_s = fit_coefficients(terms, np.array(times_s), non_negative=False)
    sizes = ", ".join(f"{size / 1e6:g}" for size in sizes_bytes)
    return Link(
        name=f"{library} between {ranks} nodes",
        latency_s=max(float(latency_s), 1e-8),
        bandwidth_bytes_per_s=float(1 / byte_s),
        devices_per_nic=1,
        source=f"measured: all-reduces of {sizes} MB",
    )
