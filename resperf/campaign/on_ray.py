"""Ray: the nodes of a cluster, and actors of ours on them. Nothing else here imports Ray.

`ray.nodes`, node affinity and ``RAY_worker_niceness`` are no stable API: tried with Ray 2.60.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from resperf.campaign.process import LISTEN_S, START_TIMEOUT_S, Interrupted, ProcessLost
from resperf.errors import CampaignError, ResperfError, first_line, require

AUTO, LOCAL = "auto", "local"
"""Addresses: of the cluster that runs on this machine, and of one that is started for a command."""
NICENESS = "0"
"""Of actors beyond their node's; Ray's own is 15."""
CONNECT_S, FREE_S = 5.0, 60.0
"""How long to wait for an answer, and for what others have reserved."""
OBJECTS_BYTES = 100_000_000
"""Of Ray's store, which holds graphs of networks only; by default it takes a third of memory."""


@dataclass(frozen=True)
class RayNode:
    """A node of Ray's that is there.

    Attributes
    ----------
    node_id, host, address : str
    gpus : int
    bundle : (PlacementGroup, int) or None
        What is reserved of it (see `reserved`).
    """

    node_id: str
    host: str
    address: str
    gpus: int
    bundle: Any = None


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Join a cluster of Ray inside the ``with`` block.

    Parameters
    ----------
    address : str
        ``"HOST:PORT"``, `AUTO` or `LOCAL`.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    ResperfError
        If there is no such cluster, or its Python or Ray is another.
    """
    ray = require("ray", "ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        # Else Ray ends what takes much memory, which is for the measuring process to say.
        options |= {"include_dashboard": False, "object_store_memory": OBJECTS_BYTES,
                    "_system_config": {"memory_monitor_refresh_ms": 0}}  # fmt: skip
    terminated = signal.getsignal(signal.SIGTERM)
    # Ray prints on stdout what becomes of nodes, which is for `--json`.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            if address not in (AUTO, LOCAL):
                host, _, port = address.rpartition(":")
                # Ray would try for minutes, and then end this process.
                socket.create_connection((host, int(port)), CONNECT_S).close()
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ResperfError(
                f"no cluster of Ray at {address!r} ({first_line(error)}); start one with "
                "`ray start --head`, or write --ray local or --ray HOST:PORT"
            ) from error
        try:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, terminated)
            yield
        finally:
            ray.shutdown()


def nodes() -> list[RayNode]:
    """Return the nodes that are there and have processors for work, in the order of their ids."""
    import ray

    return [
        RayNode(
            node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"],
            int(node["Resources"].get("GPU", 0)),
        )
        for node in sorted(ray.nodes(), key=lambda node: str(node["NodeID"]))
        if node["Alive"] and node["Resources"].get("CPU")
    ]  # fmt: skip


@contextmanager
def reserved(count: int, gpus: int) -> Iterator[list[RayNode]]:
    """Reserve a processor and GPUs on each of so many nodes inside the ``with`` block.

    Raises
    ------
    ResperfError
        If so many nodes do not have them free.
    """
    import ray
    from ray import util

    needed = {"CPU": 1, **({"GPU": gpus} if gpus else {})}
    group = util.placement_group([needed] * count, strategy="STRICT_SPREAD")
    try:
        if not ray.wait([group.ready()], timeout=FREE_S)[0]:
            raise ResperfError(
                f"{count} nodes with {needed} free are not there; wait for what runs on them"
            )
        by_id = {node.node_id: node for node in nodes()}
        places = util.placement_group_table(group)["bundles_to_node_id"]
        yield [replace(by_id[places[index]], bundle=(group, index)) for index in range(count)]
    finally:
        util.remove_placement_group(group)


def put(value: bytes) -> Any:
    """Store a value, which each node fetches once; return a reference to pass to `Actor.call`."""
    import ray

    return ray.put(value)


class Actor:
    """An object on a node, in a process of its own that ends with this one.

    Its methods return a value and an error, one of which is None.

    Parameters
    ----------
    owner : class
        Of the object; importable on the node.
    node : RayNode
    gpus : int
        That are reserved for it; its process sees no others.

    Attributes
    ----------
    wants_stop : callable
        Called every `LISTEN_S` while waiting for an answer.
    """

    def __init__(self, owner: type[Any], node: RayNode, gpus: int = 0) -> None:
        import ray
        from ray.util import scheduling_strategies as strategies

        self.node = node
        self.wants_stop: Callable[[], bool] = lambda: False
        if node.bundle:
            strategy = strategies.PlacementGroupSchedulingStrategy(*node.bundle)
        else:
            strategy = strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        environment = {
            # What is set to nothing is left alone by Ray, and mended by `owner`.
            "RAY_worker_niceness": NICENESS,
            "OMP_NUM_THREADS": "",
        }
        self._actor = (
            ray.remote(owner)
            .options(
                num_cpus=0,
                num_gpus=gpus,
                runtime_env={"env_vars": environment},
                scheduling_strategy=strategy,
            )
            .remote()
        )

    def call(self, method: str, *arguments: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Call a method, and wait for its answer.

        Raises
        ------
        ProcessLost
            If the actor or its node is gone, or does not answer in time.
        Interrupted
            If asked to stop meanwhile: the actor is ended.
        Exception
            What the method says.
        """
        import ray

        deadline = time.monotonic() + timeout_s
        asked = getattr(self._actor, method).remote(*arguments)
        try:
            while not ray.wait([asked], timeout=LISTEN_S)[0]:
                if self.wants_stop():
                    raise Interrupted("interrupted")
                if time.monotonic() >= deadline:
                    raise ProcessLost(f"{self.node.host}: no answer within {timeout_s:g} s")
            answer, error = ray.get(asked)
        except ray.exceptions.RayError as lost:
            raise ProcessLost(f"{self.node.host}: {_reason(lost)}") from lost
        except (Interrupted, ProcessLost):
            self.end()
            raise
        if error is not None:
            raise error
        return answer

    def end(self) -> None:
        """End its process, and with it what that started."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


def _reason(lost: Exception) -> str:
    """Return the last line of Ray's message, which says most."""
    return first_line(ValueError(str(lost).strip().splitlines()[-1].strip()))


def call_all(
    actors: Sequence[Actor], method: str, arguments: Sequence[Sequence[Any]] | None = None
) -> list[Any]:
    """Call a method of several actors at once; errors as of `Actor.call`."""
    of_each = arguments or [()] * len(actors)
    with ThreadPoolExecutor(len(actors)) as threads:
        asked = [threads.submit(actor.call, method, *words)
                 for actor, words in zip(actors, of_each, strict=True)]  # fmt: skip
        return [one.result() for one in asked]


def replying(method: Callable[..., Any]) -> Callable[..., tuple[Any, Exception | None]]:
    """Return a method's value or its error, which Ray would change."""

    @wraps(method)
    def answer(*arguments: Any) -> tuple[Any, Exception | None]:
        try:
            return method(*arguments), None
        except ResperfError as error:
            return None, error
        except Exception as error:
            return None, CampaignError(f"{type(error).__name__}: {error}")

    return answer


def reserved_gpus() -> list[str]:
    """Return Ray's names of the GPUs that are reserved for this process, which sees no others."""
    import ray

    return list(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))


def own_interface() -> str:
    """Return the network interface of this node that Ray uses; empty if it cannot be told."""
    import ray

    address = ray.util.get_node_ip_address()
    interfaces = require("psutil", "bench").net_if_addrs().items()
    return next(
        (name for name, addresses in interfaces if address in {one.address for one in addresses}),
        "",
    )


def version() -> str:
    """Return Ray's version."""
    return str(require("ray", "ray").__version__)
