from collections.abc import Iterable
from itertools import chain, repeat

import pytest

from resperf.errors import CampaignError
from resperf.measurement import Samples, StopReason
from resperf.timing import SamplingProtocol, WallClock, pooled, sample


class FakeRuns:
    """Runs that take the given times (ms) on a clock that only they move."""

    def __init__(self, times_ms: Iterable[float]) -> None:
        self._times_ms = iter(times_ms)
        self.now_ns = 0
        self.count = 0

    def run(self) -> None:
        self.now_ns += round(next(self._times_ms) * 1e6)
        self.count += 1

    def clock(self) -> int:
        return self.now_ns

    @property
    def sampler(self) -> WallClock:
        return WallClock(self.run, self.clock)


def test_equal_runs_stop_when_six_samples_bound_the_median() -> None:
    runs = FakeRuns(repeat(10.0))
    result = sample(runs.sampler, SamplingProtocol(min_time_s=0.0), clock=runs.clock)
    # Three equal runs end the warm-up; five samples have no interval at 95%, six have.
    assert result.warmups == 3
    assert result.taken == 6
    assert result.values == (10.0,) * 6
    assert result.stop_reason is StopReason.PRECISE
    assert not result.drift


def test_a_precise_median_is_believed_only_after_the_least_time() -> None:
    runs = FakeRuns(repeat(1.0))
    protocol = SamplingProtocol(min_time_s=0.05, budget_s=1.0)
    result = sample(runs.sampler, protocol, clock=runs.clock)
    assert result.taken == 50
    assert result.stop_reason is StopReason.PRECISE


def test_noisy_runs_stop_at_the_budget() -> None:
    runs = FakeRuns(10.0 if i % 2 else 20.0 for i in range(10_000))
    protocol = SamplingProtocol(budget_s=0.3, warmup_runs=4, warmup_s=10.0)
    result = sample(runs.sampler, protocol, clock=runs.clock)
    assert result.warmups == 4
    # Twenty runs of 15 ms on average.
    assert result.taken == 20
    assert result.stop_reason is StopReason.BUDGET


def test_runs_slower_than_the_budget_give_exactly_the_least_number() -> None:
    runs = FakeRuns(repeat(500.0))
    result = sample(runs.sampler, SamplingProtocol(min_samples=5, budget_s=0.1), clock=runs.clock)
    assert (result.warmups, result.taken) == (1, 5)
    assert result.stop_reason is StopReason.BUDGET


def test_warm_up_goes_on_until_three_runs_agree() -> None:
    runs = FakeRuns(chain([9.0, 5.0, 3.0, 2.0, 1.0, 1.0], repeat(1.0)))
    result = sample(runs.sampler, SamplingProtocol(warmup_s=1.0, min_time_s=0), clock=runs.clock)
    assert result.warmups == 7
    assert set(result.values) == {1.0}


def test_offset_and_copies_turn_a_run_into_a_layer() -> None:
    runs = FakeRuns(repeat(9.0))
    result = sample(runs.sampler, SamplingProtocol(), offset=1.0, copies=4, clock=runs.clock)
    assert result.value == 2.0
    assert (result.copies, result.divisor, result.offset) == (4, 4.0, 1.0)
    alone = sample(runs.sampler, SamplingProtocol(), clock=runs.clock)
    assert (alone.copies, alone.divisor, alone.offset) == (None, 1.0, 0.0)


def test_an_event_timer_s_values_count_and_not_the_wall_time() -> None:
    runs = FakeRuns(repeat(10.0))

    def event_ms() -> float:
        runs.run()  # what the host waits is longer than what the device works
        return 4.0 + 0.01 * (runs.count % 2)

    result = sample(event_ms, SamplingProtocol(min_time_s=0.0), clock=runs.clock)
    assert result.stop_reason is StopReason.PRECISE
    assert set(result.values) == {4.0, 4.01}


def test_what_is_no_time_is_sampled_a_few_times() -> None:
    peaks = iter([900.0, 1000.0, 1000.0, 1000.0])
    result = sample(peaks.__next__, SamplingProtocol(), unit="bytes", copies=1)
    # The first run allocates what later runs find; it warms up.
    assert result.values == (1000.0,) * 3
    assert (result.taken, result.warmups, result.stop_reason) == (3, 1, StopReason.PRECISE)
    moving = iter([900.0, 1000.0, 1100.0, 1000.0])
    noisy = sample(moving.__next__, SamplingProtocol(), unit="bytes", offset=500.0, copies=2)
    assert noisy.values == (250.0, 300.0, 250.0)
    assert noisy.stop_reason is StopReason.BUDGET


def test_a_drift_is_seen() -> None:
    runs = FakeRuns(1.0 + 0.02 * i for i in range(10_000))
    protocol = SamplingProtocol(warmup_runs=1, precision=0.001, budget_s=0.05)
    assert sample(runs.sampler, protocol, clock=runs.clock).drift


def test_many_samples_become_quantiles() -> None:
    runs = FakeRuns(1.0 + 0.5 * (i % 2) for i in range(10_000))
    result = sample(runs.sampler, SamplingProtocol(budget_s=0.5), clock=runs.clock)
    assert result.taken > 64
    assert len(result.values) == 64
    assert (result.values[0], result.values[-1]) == (1.0, 1.5)


def test_builds_count_alike_however_many_samples_each_has() -> None:
    slow = Samples((4.0,) * 5, 5, 1, StopReason.PRECISE, drift=False)
    fast = Samples((1.0,) * 40, 400, 2, StopReason.PRECISE, drift=True)
    joint = pooled([slow, fast, fast], SamplingProtocol())
    assert sorted(joint.values) == [1.0] * 10 + [4.0] * 5
    assert (joint.taken, joint.warmups, joint.drift) == (805, 5, True)
    # Places that differ by a factor of four leave the median uncertain, however many samples agree.
    assert joint.stop_reason is StopReason.BUDGET
    other = Samples((4.0,) * 40, 40, 1, StopReason.PRECISE, drift=False)
    assert pooled([other, fast, fast], SamplingProtocol()).stop_reason is StopReason.BUDGET
    assert pooled([slow, slow], SamplingProtocol()).stop_reason is StopReason.PRECISE
    assert pooled([fast], SamplingProtocol()) is fast


def test_a_build_with_one_sample_still_counts() -> None:
    one = Samples((4.0,), 1, 1, StopReason.BUDGET, drift=False)
    many = Samples((1.0, 2.0, 3.0), 3, 1, StopReason.BUDGET, drift=False)
    assert pooled([one, many], SamplingProtocol()).values == (4.0, 1.0, 3.0)


def test_very_short_runs_end_at_the_largest_number() -> None:
    runs = FakeRuns(0.001 * (1 + i % 2) for i in range(100_000))
    result = sample(runs.sampler, SamplingProtocol(max_samples=200), clock=runs.clock)
    assert result.taken == 200


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"precision": 0.0}, "precision=0.0"),
        ({"min_samples": 0}, "min_samples=0"),
        ({"budget_s": -1.0}, "budget_s=-1.0"),
        ({"min_samples": 9, "max_samples": 8}, "max_samples=8"),
        ({"budgets": 1}, "has no budgets"),
        ({"budget_s": "long"}, "must be of type float"),
        ({"min_samples": 5.5}, "must be of type int"),
        ({"min_samples": True}, "must be of type int"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], part: str) -> None:
    with pytest.raises(CampaignError, match=part):
        SamplingProtocol.from_table(settings, "protocol")


def test_scaled_protocol_keeps_counts() -> None:
    protocol = SamplingProtocol(budget_s=0.2, warmup_s=0.1, min_time_s=0.05).scaled(0.5)
    assert (protocol.budget_s, protocol.warmup_s, protocol.min_time_s) == (0.1, 0.05, 0.025)
    assert protocol.min_samples == SamplingProtocol().min_samples


def test_a_protocol_is_read_from_a_table() -> None:
    protocol = SamplingProtocol.from_table({"budget_s": 0.3, "placements": 2}, "protocol")
    assert protocol == SamplingProtocol(budget_s=0.3, placements=2)


def test_exceptions_of_the_run_pass_through() -> None:
    def fail() -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        sample(WallClock(fail), SamplingProtocol())
