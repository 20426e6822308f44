import pytest

from resperf.backends import backend
from resperf.backends.monitors import Monitor
from resperf.campaign import measure_layer
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import Conv, Dense, Reorder
from resperf.measurement import Status
from resperf.testing.synthetic import SyntheticBackend
from resperf.timing import SamplingProtocol

DENSE = Dense(batch=10, features_in=500, features_out=200)


def simulated(device: SyntheticBackend) -> Monitor:
    """Watch a device by its clock alone."""
    monitor = Monitor()
    monitor.clock = device.clock
    return monitor


def measured(device: SyntheticBackend, **protocol: float) -> dict[str, float]:
    row = measure_layer(device, DENSE, SamplingProtocol(**protocol), monitor=simulated(device))
    return {name: row.value(name) for name in row.samples} | {"isolated": row.isolated_ms}


def test_times_are_the_closed_form() -> None:
    times_ms = measured(SyntheticBackend(gflops=10.0, gb_per_s=1.0))
    # 1,000,000 macs = 2 MFLOP at 10 GFLOP/s: 0.2 ms. Bytes: in 20,000, out 8,000,
    # weights 4 * 200 * 501 = 400,800; together 428,800 at 1 GB/s: 0.4288 ms.
    assert times_ms["execution_ms"] == pytest.approx(0.005 + 0.2 + 0.4288, abs=1e-5)
    assert times_ms["preprocess_ms"] == pytest.approx(0.010 + 0.020, abs=1e-5)
    assert times_ms["postprocess_ms"] == pytest.approx(0.010 + 0.008, abs=1e-5)
    assert times_ms["isolated"] == pytest.approx(0.02 + 0.6338, abs=1e-5)


def test_noise_is_seeded() -> None:
    first, again, other = (measured(SyntheticBackend(noise=0.1, seed=s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_machine_slows_down_on_demand() -> None:
    device = SyntheticBackend(slow=(1, 2, 3.0))
    times_ms = [measured(device)["execution_ms"] for _ in range(4)]
    # What is left of the call's cost when the machine is slower goes to the layer.
    assert times_ms[0] == times_ms[3]
    assert times_ms[1] == times_ms[2] == pytest.approx(3 * times_ms[0], abs=2 * 0.02 / 4 + 1e-6)


@pytest.mark.parametrize(
    ("failure", "status"),
    [("memory", Status.OUT_OF_MEMORY), ("unsupported", Status.UNSUPPORTED)],
)
def test_failures_on_demand_become_statuses(failure: str, status: Status) -> None:
    device = SyntheticBackend(fail={failure: "features_in=500,"})
    row = measure_layer(device, DENSE, SamplingProtocol(), monitor=simulated(device))
    assert row.status is status
    assert row.samples == {}
    assert "on demand" in row.detail
    other = measure_layer(
        device,
        DENSE.replace(features_in=501),
        SamplingProtocol(),
        monitor=simulated(device),
    )
    assert other.status is Status.OK


def test_unknown_failures_and_settings_are_refused() -> None:
    with pytest.raises(ResperfError, match="explode"):
        SyntheticBackend(fail={"explode": ""})
    with pytest.raises(ResperfError, match="colour"):
        backend("synthetic", colour="red")


def test_re_layouts_are_not_supported() -> None:
    device = SyntheticBackend()
    with pytest.raises(UnsupportedError, match="reorder"):
        device.layer(Reorder(batch=1, channels_in=16, height=4, width=4), budget_ms=1.0)


def test_settings_are_part_of_the_setting() -> None:
    slow, fast = SyntheticBackend(gflops=1.0), SyntheticBackend(gflops=2.0)
    assert slow.setting().differences(fast.setting()) == ["gflops: 1 here, 2 there"]


def test_lowering_changes_nothing() -> None:
    layer = Conv(
        batch=1, channels_in=3, channels_out=8, height=9, width=7, kernel_height=3, kernel_width=3
    )
    assert SyntheticBackend().lower([layer, DENSE]) == [layer, DENSE]
