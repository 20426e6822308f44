from __future__ import annotations

from pathlib import Path

import pytest

from resperf.backends import backend
from resperf.campaign import Campaign
from resperf.layers import Dense
from resperf.measurement import Measurement, Status
from resperf.timing import KNOWN_READINGS

CAMPAIGN = Campaign.from_mapping(
    {"name": "tiny", "kinds": {"dense": {"batch": 1, "features_in": 8, "features_out": 8}}}
)


def test_a_probe_keeps_the_least_usual_time_that_any_process_found(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from resperf.campaign.store import Store

    device = backend("synthetic")

    def opened() -> Store:
        return Store(
            tmp_path / "d.h5",
            CAMPAIGN,
            seed=0,
            setting=device.setting(),
            platform=device.platform(),
        )

    store = opened()
    store.usual_probes["caches_probe_ms"] = (0.1, 7)
    assert store.costs == {"caches_probe_ms": 0.1}
    crashed = Dense(batch=1, features_in=8, features_out=8)
    store.add_row(
        Measurement(crashed, Status.CRASHED, setting=device.setting(), platform=device.platform())
    )
    store.compact()
    store.close(complete=False)
    again = opened()
    assert again.usual_probes == {"caches_probe_ms": (0.1, KNOWN_READINGS)}
    assert again.costs["caches_probe_ms"] == 0.1
    again.close(complete=True)
