"""Where PyTorch runs: how work is timed on a CPU and on a CUDA device, and what it allocates.

On a CPU every operator returns when it is done, and a wall clock times it. On CUDA the host only
queues kernels. What a layer takes there is timed between two events of the stream, behind a filler
that keeps the stream busy until the host has queued all copies: times are the device's alone. What
the host needs to queue a kernel is a cost of its own (``dispatch_ms``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from resperf.backends._process_memory import process_bytes_on_gpu, process_peak
from resperf.errors import ResperfError, silent_stderr
from resperf.targets import device_number
from resperf.timing import Sampler, WallClock

Run = Callable[[], object]
NetworkMemory = Callable[[Run, Callable[[], int]], Mapping[str, Sampler]]
"""Takes a run and what gives its resident bytes; returns samplers by quantity."""
AHEAD_MS, AHEAD_FACTOR = 0.1, 2.0
"""The filler takes this long, and that many times what the host needs to queue the work."""
# Each doubles the filler: the last one is sixteen times as long.
ATTEMPTS = 5
FEW_ATTEMPTS = 2
"""Where a longer filler hardly helps: the device's queue is too short for more than about a
thousand kernels."""
# 5 to 10 ms at clocks of 1 to 2 GHz, beside which what two events cost is nothing.
_FILLER_CYCLES = 10_000_000


class Cpu:
    """The host's processors.

    Attributes
    ----------
    torch_device : torch.device
    provider : str
    libraries : str
        What several processes exchange tensors by, as ``init_process_group`` takes it; the last
        one exchanges those on the device.
    """

    provider = "CPU"
    libraries = "gloo"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def timer(self, run: Run, before: Run | None = None) -> Sampler:
        """Time work as the device does it, without what the host needs to start it.

        `before` is run first each time, and not timed.
        """
        return WallClock(run, before=before)

    run_timer = timer

    def call_timer(self, run: Run) -> Sampler:
        """Time a call on the host until its results are there."""
        return WallClock(run)

    def uploads(self, arrays: Sequence[Any], memory_format: Any) -> Sampler:
        """Time forced copies: ``from_numpy`` alone is a view."""
        return WallClock(lambda: [x.clone(memory_format=memory_format(x)) for x in arrays])

    def downloads(self, outputs: Callable[[], Sequence[Any]]) -> Sampler:
        """Time forced copies: ``numpy()`` alone is a view."""
        given = [tensor.detach() for tensor in outputs()]
        return WallClock(
            lambda: [tensor.clone(memory_format=torch.contiguous_format) for tensor in given]
        )

    def network_memory(self) -> NetworkMemory:
        """Return what samples the memory of a run of the network that is built next."""
        process = process_peak()

        def samplers(run: Run, resident: Callable[[], int]) -> Mapping[str, Sampler]:
            peak = {"peak_memory_bytes": self.peak_bytes(run, resident)}
            return peak if process is None else {**peak, "process_memory_bytes": process(run)}

        return samplers

    def peak_bytes(self, run: Run, resident: Callable[[], int]) -> Sampler:
        """Return the most memory that is allocated during a run, resident tensors included.

        It adds up what the allocator reports to PyTorch's profiler.
        """

        def peak() -> float:
            before = resident()
            profiler = torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)
            with silent_stderr(), profiler as profile:  # It logs that it starts and stops.
                run()
            size, most = 0, 0
            for event in profile.kineto_results.events():
                if event.name() == "[memory]":
                    size += event.nbytes()
                    most = max(most, size)
            return float(before + most)

        return peak

    def holds(self, _run: Run) -> bool:
        """Return True: nothing is queued."""
        return True

    def has_failed(self) -> bool:
        """Return False: an operator's error is its own."""
        return False

    def check(self, size_bytes: float) -> None:
        """Do nothing: the monitor limits the memory of this process."""


class Filler:
    """Keeps a stream busy for a number of milliseconds."""

    def __init__(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_FILLER_CYCLES)
        torch.cuda.synchronize()
        start.record()
        torch.cuda._sleep(_FILLER_CYCLES)
        end.record()
        end.synchronize()
        self._cycles_per_ms = _FILLER_CYCLES / start.elapsed_time(end)

    def __call__(self, time_ms: float) -> None:
        """Queue that much idling."""
        torch.cuda._sleep(int(time_ms * self._cycles_per_ms))


def _torch_device(number: int) -> torch.device:
    return torch.device("cuda", number)


class EventTimer:
    """A sampler: the time between two events around work on the stream.

    Parameters
    ----------
    run : callable
        Queues the work.
    filler : Filler, optional
        Keeps the stream busy until all work is queued. A sample whose work began before the host
        had queued it all is taken again behind a longer filler.
    before : callable, optional
        Queues what is not timed.
    attempts : int
        How often a sample is taken before its last one counts.

    Attributes
    ----------
    was_ahead : bool
        Whether the host had queued all work of the last sample before the device began it.
    """

    was_ahead = False

    def __init__(
        self,
        run: Run,
        filler: Filler | None = None,
        before: Run | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._run, self._filler, self._before = run, filler, before or (lambda: None)
        self._attempts = attempts
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._ahead_ms = AHEAD_MS
        if filler is not None:
            self._before()
            run()
            self._before()
            self._ahead_ms += AHEAD_FACTOR * WallClock(run)()
            torch.cuda.synchronize()

    def __call__(self) -> float:
        """Run once and return the milliseconds between the events."""
        ahead_ms = self._ahead_ms
        for _ in range(self._attempts):
            self._before()
            if self._filler is not None:
                self._filler(ahead_ms)
            self._start.record()
            self._run()
            self.was_ahead = not self._start.query()
            self._end.record()
            self._end.synchronize()
            if self._filler is None or self.was_ahead:
                self._ahead_ms = ahead_ms
                break
            ahead_ms *= AHEAD_FACTOR
        return float(self._start.elapsed_time(self._end))


class Cuda:
    """A CUDA device.

    Raises
    ------
    ResperfError
        If there is none of this number.
    """

    provider = "CUDA"
    libraries = "cpu:gloo,cuda:nccl"

    def __init__(self, word: str) -> None:
        number = device_number(word)
        if not torch.cuda.is_available():
            raise ResperfError(
                f"no device {word}: PyTorch {torch.__version__} finds no CUDA device; install a "
                "driver and a build of PyTorch with CUDA, or use --device cpu"
            )
        count = torch.cuda.device_count()
        if number >= count:
            raise ResperfError(
                f"no device {word}: this machine has {count}, from cuda:0 to cuda:{count - 1}"
            )
        self.torch_device = _torch_device(number)
        torch.cuda.set_device(number)
        self._filler = Filler()

    def timer(self, run: Run, before: Run | None = None) -> Sampler:
        """Time queued work between events, behind the filler."""
        return EventTimer(run, self._filler, before)

    def run_timer(self, run: Run, before: Run | None = None) -> Sampler:
        """Time work between events as the host starts it."""
        return EventTimer(run, before=before)

    def device_timer(self, run: Run, before: Run | None = None) -> Sampler | None:
        """Time work on the device alone; None where its queue is too short for all kernels."""
        timer = EventTimer(run, self._filler, before, FEW_ATTEMPTS)
        timer()
        return timer if timer.was_ahead else None

    def holds(self, run: Run) -> bool:
        """Whether the device's queue is long enough for all kernels of a run."""
        return self.device_timer(run) is not None

    def has_failed(self) -> bool:
        """Whether an error ended all work of this process on the device."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def call_timer(self, run: Run) -> Sampler:
        """Time a call until the device is done, by the wall clock."""

        def complete() -> None:
            run()
            torch.cuda.synchronize()

        return WallClock(complete)

    def uploads(self, arrays: Sequence[Any], memory_format: Any) -> Sampler:
        """Time copies from pinned memory between events."""
        pinned = [tensor.pin_memory() for tensor in arrays]
        return EventTimer(
            lambda: [
                tensor.to(self.torch_device, non_blocking=True, memory_format=memory_format(tensor))
                for tensor in pinned
            ]
        )

    def downloads(self, outputs: Callable[[], Sequence[Any]]) -> Sampler:
        """Time copies into pinned memory between events."""
        given = [tensor.detach() for tensor in outputs()]
        hosts = [torch.empty_like(tensor, device="cpu").pin_memory() for tensor in given]

        def copy() -> None:
            for host, tensor in zip(hosts, given, strict=True):
                host.copy_(tensor, non_blocking=True)

        return EventTimer(copy)

    def network_memory(self) -> NetworkMemory:
        """Return what samples the memory of a run of a network."""
        # Until it is emptied, PyTorch's cache keeps what it held at most.
        of_process = process_bytes_on_gpu(str(self.torch_device))

        def samplers(run: Run, resident: Callable[[], int]) -> Mapping[str, Sampler]:
            counters: dict[str, Callable[[], float]] = {
                "peak_memory_bytes": torch.cuda.max_memory_allocated,
                "peak_reserved_bytes": torch.cuda.max_memory_reserved,
            }
            if of_process is not None:
                counters["process_memory_bytes"] = of_process
            return {name: self._peak(run, resident, most) for name, most in counters.items()}

        return samplers

    def peak_bytes(self, run: Run, resident: Callable[[], int]) -> Sampler:
        """Ask the caching allocator for its peak; other work's tensors do not count."""
        return self._peak(run, resident, torch.cuda.max_memory_allocated)

    def _peak(self, run: Run, resident: Callable[[], int], most: Callable[[], float]) -> Sampler:
        def peak() -> float:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            others_bytes = torch.cuda.memory_allocated() - resident()
            run()
            torch.cuda.synchronize()
            return float(most() - others_bytes)

        return peak

    def check(self, size_bytes: float) -> None:
        """Refuse what is larger than the memory that is free.

        Raises
        ------
        MemoryError
        """
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info()
        if size_bytes > free_bytes:
            raise MemoryError(
                f"needs about {size_bytes / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free on "
                f"{self.torch_device}"
            )

    def dispatch_ms(self, run: Run, kernels: int) -> float:
        """Return what the host needs to queue one of the kernels of a run."""
        torch.cuda.synchronize()
        self._filler(AHEAD_MS + AHEAD_FACTOR * WallClock(run)())
        queued_ms = WallClock(run)()
        torch.cuda.synchronize()
        return queued_ms / kernels


Device = Cpu | Cuda
