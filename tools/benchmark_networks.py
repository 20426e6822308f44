#!/usr/bin/env python
"""Predicted beside measured time of whole networks: the figure that the README gives.

Measures LeNet-5, AlexNet and VGG16 (or the networks named) at several batch sizes on this machine
and prints every bundle's prediction beside it. Train one bundle without the judged networks' layers
(`resperf train DATA.h5 --exclude ... -o A`) and one with them allowed (`... -o B`), then:

    python tools/benchmark_networks.py --bundle A --bundle B
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from resperf.backends import backend
from resperf.bundle import Bundle
from resperf.campaign.harvest import shipped_networks
from resperf.network import read_network
from resperf.prediction import predict_network
from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
from resperf.workflows.guarded import reference_monitor
from resperf.workflows.measure import measure_network

NAMES = ("lenet5", "alexnet", "vgg16")
BATCHES = (1, 2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, action="append", required=True)
    parser.add_argument(
        "--network", type=Path, action="append", help="default: LeNet, AlexNet, VGG"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seconds", type=float, default=5.0, help="per network and batch size")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    words = parser.parse_args()
    bundles = [Bundle.load(path) for path in words.bundle]
    first = bundles[0].fingerprint
    device = backend(first.framework, threads=first.threads)
    rows: dict[str, list[ComparisonRow]] = {str(path): [] for path in words.bundle}
    with reference_monitor(device, costs=bundles[0].costs) as monitor:
        for path in words.network or shipped_networks(NAMES):
            for batch in words.batch:
                measured = measure_network(
                    path, device, batch=batch, seconds=words.seconds, layers=False, monitor=monitor
                )
                network = read_network(path, batch=batch)
                for name, bundle in zip(rows, bundles, strict=True):
                    predicted = predict_network(network, bundle)
                    rows[name].append(
                        ComparisonRow(network.name, batch, predicted.total_ms, measured.total_ms)
                    )
                answers = [each[-1] for each in rows.values()]
                print(
                    f"{network.name} batch {batch}: measured {measured.total_ms:.4g} ms in "
                    f"{measured.runs} runs, p95 {measured.percentiles_ms['p95']:.4g} ms, reference "
                    f"{measured.reference_ratio:.2f}; predicted "
                    + ", ".join(f"{a.predicted_ms:.4g} ms ({a.error:+.1%})" for a in answers),
                    flush=True,
                )
    for name, compared in rows.items():
        print(f"\n{name}: mean absolute error {mean_error(compared):.1%}")
        print(comparison_table(compared))
    if words.json:
        words.json.write_text(
            json.dumps({n: [vars(row) for row in r] for n, r in rows.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
