"""Fits of what training steps cost on several devices, and the baselines beside them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from resperf.devices.exchange import Exchange, exchange_s
from resperf.errors import UnsupportedError
from resperf.predictors.exchange_fit import (
    FittedExchange,
    GroupStep,
    corrected_s,
    fit_exchange,
    pooled,
    residual,
    with_interval,
)

TRUE = FittedExchange(
    Exchange(slowdown=1.08, overlap=1.8, contention=0.2, contention_of_two=0.6, host_s=2e-3),
    (2e-4, 6e9), (8e-4, 7e8), np.zeros(0),
)  # fmt: skip
SIZES = {"small": 6e6, "wide": 5e8, "deep": 1e8, "plain": 4e7}
PLACES = [(1, 2), (1, 4), (2, 1), (2, 4), (3, 1), (4, 4), (8, 2), (8, 4)]


def steps(noise: float = 0.0, places=PLACES, *, more: float = 0.0) -> list[GroupStep]:
    """Return steps by the equations, with noise; `more` lengthens those of large networks."""
    random, rows = np.random.default_rng(0), []
    for name, size in SIZES.items():
        for batch in (8, 64):
            alone_s = batch * (2e-4 + size * 2e-11)
            for nodes, per_node in places:
                sums_s = exchange_s(size, nodes, per_node, *TRUE[1:3], TRUE.exchange)
                time_s = TRUE.exchange.step_s(alone_s, sums_s) * (size / 1e7) ** more
                time_s *= np.exp(noise * random.normal())
                rows.append(GroupStep(name, name, batch, size, nodes * per_node, nodes, per_node,
                                      alone_s, float(time_s)))  # fmt: skip
    return rows


def off(predicted_s, rows) -> np.ndarray:
    return np.abs(np.asarray(predicted_s) / [row.time_s for row in rows] - 1)


def test_a_network_that_was_not_fitted():
    rows = steps(0.02)
    for name in SIZES:
        held = [row for row in rows if row.network == name]
        fitted = fit_exchange([row for row in rows if row.network != name])
        assert off(fitted.times_s(held), held).mean() < 0.06
        # What nothing is exchanged for, and every baseline, is much further off.
        assert off([row.alone_s for row in held], held).mean() > 0.2
    again = fit_exchange(rows)
    assert again.exchange == fit_exchange(rows).exchange
    assert again.between[1] == pytest.approx(7e8, rel=0.3)


def test_outlying_rows_do_not_move_the_fit():
    rows = steps()
    shared = [row._replace(time_s=3 * row.time_s) if index % 13 == 0 else row
              for index, row in enumerate(rows)]  # fmt: skip
    assert np.median(off(fit_exchange(shared).times_s(rows), rows)) < 0.05


def test_few_rows_are_drawn_to_other_clusters():
    """Steps inside one node say nothing about what is between nodes: that of other clusters."""
    other, rows = fit_exchange(steps()), steps(places=[(1, 2), (1, 4)])
    drawn = fit_exchange(rows, other)
    assert drawn.between == pytest.approx(other.between, rel=1e-3)
    assert fit_exchange(rows).between != pytest.approx(other.between, rel=0.2)
    mean = pooled([other, other])
    assert mean.exchange.slowdown == pytest.approx(other.exchange.slowdown)
    with pytest.raises(UnsupportedError, match="measure some on 2 or more"):
        fit_exchange([])


def test_the_interval_holds_networks_that_were_left_out():
    rows = steps(0.1)
    exchange = with_interval(rows, fit_exchange(rows)).exchange
    assert exchange.most_devices == 32
    assert 0.7 < exchange.low < 0.9
    assert 1.1 < exchange.high < 1.4
    inside = []
    for name in SIZES:
        held = [row for row in rows if row.network == name]
        fitted = fit_exchange([row for row in rows if row.network != name])
        ratios = np.array([row.time_s for row in held]) / fitted.times_s(held)
        inside += [exchange.low <= ratio <= exchange.high for ratio in ratios]
    assert 0.85 <= np.mean(inside) <= 0.97
    assert with_interval(steps(), fit_exchange(steps())).exchange.low > exchange.low


def test_a_residual_must_help_unseen_networks():
    rows = steps(0.02)
    coefficients, gain, spread = residual(rows, fit_exchange(rows))
    assert coefficients is None
    assert gain <= spread
    # Steps that grow with the network beyond what is exchanged, against the true exchange.
    longer = steps(0.01, more=0.2)
    coefficients, gain, spread = residual(longer, TRUE)
    assert coefficients is not None
    assert gain > spread > 0
    assert off(corrected_s(longer, TRUE, coefficients), longer).mean() < 0.1
    assert off(corrected_s(longer, TRUE, None), longer).mean() > 0.3
    assert residual([row for row in longer if row.network == "wide"], TRUE)[0] is None
    # More columns of a network, such as its embedding, are used alike.
    extra = {name: np.array([float(index)]) for index, name in enumerate(SIZES)}
    more, *_ = residual(longer, TRUE, extra)
    assert more is not None
    assert len(more) == len(coefficients) + 1


def test_fits_are_dataclasses_of_plain_numbers():
    """They are written into clusters as they are."""
    fitted = with_interval(steps(), fit_exchange(steps()))
    assert all(isinstance(value, float | int) for value in vars(fitted.exchange).values())
    assert dataclasses.replace(fitted.exchange, overlap=2.0).overlap == 2.0
