#!/usr/bin/env python
"""Predicted beside measured time of whole networks: the figure that the README gives.

Measures LeNet-5, AlexNet and VGG16 (or the networks named) at several batch sizes on this machine
and prints every bundle's prediction beside it. Train one bundle without the judged networks' layers
(`resperf train DATA.h5 --exclude ... -o A`) and one with them allowed (`... -o B`), then:

    python tools/benchmark_networks.py --bundle A --bundle B

All are measured in several sittings, one after the other, since a shared machine changes its state
for minutes: a network's time is the median of its sittings, and the spread is printed beside it.
Sittings during which the machine never had its usual speed count only where there is no other.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from resperf.backends import backend
from resperf.bundle import Bundle
from resperf.campaign.harvest import shipped_networks
from resperf.network import read_network
from resperf.prediction import predict_network
from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
from resperf.workflows.guarded import reference_monitor
from resperf.workflows.measure import MeasuredNetwork, measure_network

NAMES = ("lenet5", "alexnet", "vgg16")
BATCHES = (1, 2, 4, 8, 16)


@dataclass
class Judged:
    """A network at one batch size: every bundle's prediction, and every sitting's measurement."""

    path: Path
    batch: int
    predicted_ms: dict[str, float]
    sittings: list[MeasuredNetwork] = field(default_factory=list)

    @property
    def counted_ms(self) -> list[float]:
        """Times of the sittings with a steady round; of all where none had one."""
        steady = [each.total_ms for each in self.sittings if each.steady_rounds]
        return steady or [each.total_ms for each in self.sittings]

    def row(self, bundle: str) -> ComparisonRow:
        """Compare one bundle with the median of the sittings."""
        counted = self.counted_ms
        remark = f"{min(counted):.4g} to {max(counted):.4g} ms in {len(counted)} sittings"
        if not any(each.steady_rounds for each in self.sittings):
            remark += ", none steady"
        return ComparisonRow(
            self.path.stem, self.batch, self.predicted_ms[bundle], median(counted), remark
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, action="append", required=True)
    parser.add_argument(
        "--network", type=Path, action="append", help="default: LeNet, AlexNet, VGG"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--sittings", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="per network, batch size and sitting"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    words = parser.parse_args()
    bundles = {str(path): Bundle.load(path) for path in words.bundle}
    judged = []
    for path in words.network or shipped_networks(NAMES):
        for batch in words.batch:
            network = read_network(path, batch=batch)
            predicted_ms = {
                name: predict_network(network, bundle).total_ms for name, bundle in bundles.items()
            }
            judged.append(Judged(path, batch, predicted_ms))
    measure(judged, bundles[str(words.bundle[0])], words.sittings, words.seconds)
    rows = {name: [each.row(name) for each in judged] for name in bundles}
    for name, compared in rows.items():
        print(f"\n{name}: mean absolute error {mean_error(compared):.1%}")
        print(comparison_table(compared))
    if words.json:
        words.json.write_text(
            json.dumps({n: [vars(row) for row in r] for n, r in rows.items()}, indent=1)
        )


def measure(judged: list[Judged], bundle: Bundle, sittings: int, seconds: float) -> None:
    """Measure everything once per sitting, on the framework and threads of a bundle."""
    device = backend(bundle.fingerprint.framework, threads=bundle.fingerprint.threads)
    with reference_monitor(device, costs=bundle.costs) as monitor:
        for sitting in range(sittings):
            for each in judged:
                measured = measure_network(
                    each.path, device, batch=each.batch, seconds=seconds, layers=False,
                    monitor=monitor,
                )  # fmt: skip
                each.sittings.append(measured)
                errors = [ms / measured.total_ms - 1 for ms in each.predicted_ms.values()]
                print(
                    f"sitting {sitting + 1}: {measured.network} batch {each.batch}: "
                    f"{measured.total_ms:.4g} ms in {measured.runs} runs, "
                    f"{measured.steady_rounds} of {measured.rounds} rounds steady, reference "
                    f"{measured.reference_ratio:.2f}; predictions off by "
                    + ", ".join(f"{error:+.1%}" for error in errors),
                    flush=True,
                )


if __name__ == "__main__":
    main()
