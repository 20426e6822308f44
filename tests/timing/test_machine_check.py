from resperf.timing import MachineCheck, WallClock


class FakeWork:
    """Work that takes a given time on a clock that it drives."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.takes_ms = 0.1
        self.runs = 0

    def run(self) -> None:
        self.now_ns += round(self.takes_ms * 1e6)
        self.runs += 1

    def clock(self) -> int:
        return self.now_ns


def check_of(work: FakeWork) -> MachineCheck:
    return MachineCheck(WallClock(work.run, work.clock), seconds=0.001, clock=work.clock)


def test_a_machine_check_is_slow_against_its_usual_time() -> None:
    work = FakeWork()
    check = check_of(work)
    assert [check.is_slow() for _ in range(6)] == [False] * 6
    work.takes_ms = 0.13
    assert not check.is_slow()
    work.takes_ms = 0.2
    assert check.is_slow()
    work.takes_ms = 0.1
    assert not check.is_slow()


def test_a_slow_quarter_of_an_hour_does_not_become_usual() -> None:
    work = FakeWork()
    check = check_of(work)
    for _ in range(10):
        check.is_slow()
    work.takes_ms = 0.2
    # Up to three quarters of all checks may be slow: the lower quartile still is the usual time.
    assert all(check.is_slow() for _ in range(25))


def test_too_few_readings_give_no_usual_time() -> None:
    work = FakeWork()
    check = check_of(work)
    check.is_slow()
    work.takes_ms = 5.0
    assert not check.is_slow()


def test_a_check_repeats_the_work_for_its_time() -> None:
    work = FakeWork()
    check = check_of(work)
    check.is_slow()
    assert work.runs == 1 + 10
    work.takes_ms = 50.0
    check.is_slow()
    assert work.runs == 11 + 1 + 6


def test_a_known_usual_time_shows_a_state_that_was_there_from_the_start() -> None:
    work = FakeWork()
    work.takes_ms = 0.2
    check = MachineCheck(
        WallClock(work.run, work.clock), seconds=0.001, clock=work.clock, usual_ms=0.1
    )
    assert check.is_slow()
    assert check.usual_ms == 0.1
    unknown = check_of(work)
    assert not unknown.is_slow()
    assert unknown.usual_ms == float("inf")


def test_a_usual_time_that_was_too_long_is_corrected() -> None:
    work = FakeWork()
    check = MachineCheck(
        WallClock(work.run, work.clock), seconds=0.001, clock=work.clock, usual_ms=1.0, readings=10
    )
    for _ in range(4):
        check.is_slow()
    assert check.usual_ms == 0.1
    assert check.readings == 14
    work.takes_ms = 0.2
    assert check.is_slow()


def test_a_state_that_is_rare_is_not_usual() -> None:
    work = FakeWork()
    work.takes_ms = 0.2
    check = check_of(work)
    for reading in range(100):
        # For one second in ten, the cores share a cache.
        work.takes_ms = 0.1 if reading % 10 == 5 else 0.2
        assert not check.is_slow() or reading < 20
    assert check.usual_ms == 0.2


def test_waiting_does_not_make_a_slow_state_usual() -> None:
    work = FakeWork()
    check = check_of(work)
    for _ in range(10):
        check.is_slow()
    work.takes_ms = 0.2
    assert all(check.is_slow(record=False) for _ in range(100))
    assert check.readings == 10


def test_work_that_seems_slow_gets_more_runs() -> None:
    work = FakeWork()
    check = MachineCheck(
        WallClock(work.run, work.clock), seconds=0.0, clock=work.clock, usual_ms=0.1
    )
    assert not check.is_slow()
    assert work.runs == 1 + 6
    work.takes_ms = 0.3
    assert check.is_slow()
    assert work.runs == 7 + 1 + 36


def test_the_fastest_of_several_runs_counts() -> None:
    work = FakeWork()
    times = iter([0.1, 0.5, 0.4, 0.1, 0.6, 0.3, 0.5] * 20)

    def run() -> None:
        work.takes_ms = next(times)
        work.run()

    check = MachineCheck(WallClock(run, work.clock), seconds=0.0, clock=work.clock, usual_ms=0.1)
    assert not any(check.is_slow() for _ in range(20))


def test_the_threshold_for_slow_can_be_chosen() -> None:
    work = FakeWork()
    check = MachineCheck(WallClock(work.run, work.clock), seconds=0.001, clock=work.clock, slow=2.0)
    for _ in range(4):
        check.is_slow()
    work.takes_ms = 0.18
    assert not check.is_slow()
    work.takes_ms = 0.22
    assert check.is_slow()
