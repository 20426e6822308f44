"""ConvMeter: times of whole networks as linear forms of few totals of their graphs.

Beringer, Stock, Mazaheri and Wolf, "Dissecting Convolutional Neural Networks for Runtime and
Scalability Prediction" (ICPP 2024). One set of coefficients for each device, setting and quantity,
found by linear regression (section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from resperf.features import Columns
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._base import Account, Predicted, Predictor, Task, stored
from resperf.predictors.linear import SQUARES, LinearFit, Robust
from resperf.predictors.network_totals import SORTS, Counted, counted
from resperf.quantities import EXECUTION, STEP, WHOLE_CALL, Level
from resperf.settings import Setting, same_settings

_FORWARD = frozenset({EXECUTION, "latency_ms", WHOLE_CALL, "forward_ms"})
_UPDATING = frozenset({"update_ms", STEP})
"""Quantities that hold the update of the weights."""
INFERRED_FROM = "whole networks on this device"
_CONSTANT = "constant"
_OF_SORTS = ("multiply-adds", "values", "weights")
_DEVICES = "devices"


class LinearInTotals(Predictor):
    """Base of methods that are linear in totals of a network.

    Attributes
    ----------
    fits_ : list of LinearFit
        One for each device and setting.
    """

    level = Level.NETWORK
    quantities = frozenset({*_FORWARD, *_UPDATING, "backward_ms"})
    fewest = 4
    reads_lists = True
    uses_validation = False
    relative: ClassVar[bool] = True
    """Whether relative errors are minimised, not those in ms."""
    non_negative: ClassVar[bool] = True
    """Whether no coefficient is below zero."""
    parts: ClassVar[Mapping[str, str]] = {}
    """Column -> the column that it is a part of, to whose cost its own is drawn."""
    robust: ClassVar[Robust] = SQUARES
    """Whether absolute errors are minimised, not squared ones."""

    @property
    def depends_on_devices(self) -> bool:
        """Whether the quantity has terms for the exchange between devices."""
        return self.quantity_ in _UPDATING

    def columns(self, network: Counted, devices: int) -> dict[str, float]:
        """Return what the quantity is linear in: name -> value."""
        raise NotImplementedError

    def rows(
        self, networks: Sequence[Any], how: Sequence[tuple[Setting, Platform]]
    ) -> list[dict[str, float]]:
        """Return the same of each network under its setting on its platform."""
        return [
            self.columns(network, platform.devices)
            for network, (_, platform) in zip(networks, how, strict=True)
        ]

    def prepared(self, networks: Sequence[Any]) -> Sequence[Any]:
        """Count what networks compute, which fits and predictions read instead of their graphs."""
        return [
            network if isinstance(network, Counted) else counted(network) for network in networks
        ]

    def at_batches(
        self, read: Callable[[int], Network], batches: Sequence[int]
    ) -> Mapping[int, Any]:
        """Count a network once; its totals are in proportion to the batch size (equation 3)."""
        first = min(batches)
        network = counted(read(first))
        return {batch: network.scaled(batch / first) for batch in batches}

    def remarks(self, network: Counted) -> Sequence[str]:
        """Return what users should know about the totals of a network."""
        return ()

    def _learn(self, task: Task) -> None:
        examples = task.examples
        how = examples.per_row()
        networks = self.prepared(examples.networks)
        rows = self.rows(networks, how)
        names = np.array(examples.groups or [network.name for network in networks])
        places: dict[tuple[str, Setting], list[int]] = {}
        for row, (setting, platform) in enumerate(how):
            places.setdefault((platform.device, setting.without_batch()), []).append(row)
        self.fits_ = [
            LinearFit.fit(
                device, setting, [rows[row] for row in own], examples.values[own],
                names[own], relative=self.relative, non_negative=self.non_negative,
                parts=self.parts, robust=self.robust,
            )
            for (device, setting), own in places.items()
        ]  # fmt: skip
        self.notes_ = tuple(note for fit in self.fits_ for note in fit.notes)

    def fit_for(self, setting: Setting, platform: Platform) -> LinearFit:
        """Return the fit of a device and setting, or the one with the fewest other differences.

        Raises
        ------
        UnsupportedError
            If no network was measured so on this device.
        """
        way = same_settings(setting)
        alike = [
            fit
            for fit in self.fits_
            if fit.device == platform.device and same_settings(fit.setting) == way
        ]
        if not alike:
            raise self.no_rows_error({fit.described for fit in self.fits_}, setting, platform)
        asked = setting.without_batch()
        return min(
            alike,
            key=lambda fit: (
                fit.setting.optimizer != asked.optimizer,
                fit.setting.threads != asked.threads,
                fit.setting.framework_version != asked.framework_version,
            ),
        )

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict whole networks."""
        networks = self.prepared(cast("Sequence[Network]", subjects))
        rows = self.rows(networks, [(setting, platform)] * len(networks))
        return {self.quantity_: self.fit_for(setting, platform).predict(rows)}

    def most_devices(self, setting: Setting, platform: Platform) -> int:
        """Return how many devices shared one run at most, of those that it learnt from."""
        _, most = self.fit_for(setting, platform).ranges.get(_DEVICES, (1, 1))
        return int(most)

    def account(self, network: Network, setting: Setting, platform: Platform) -> Account:
        """Say what the time of a network was inferred from, and whether it is extrapolated."""
        fit = self.fit_for(setting, platform)
        (counts,) = self.prepared([network])
        row = self.columns(counts, platform.devices)
        notes = (*self.remarks(counts), *fit.remarks([row]))
        return Account(INFERRED_FROM, {}, {}, fit.outside(row), counts.left_out, notes)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Return the coefficients; there is no network to write."""
        return {"fits": [fit.to_json() for fit in self.fits_]}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the coefficients."""
        self.fits_ = [LinearFit.from_json(fit) for fit in stored(values, "fits")]


class LinearInGraph(LinearInTotals):
    """Base of methods that are linear in what follows from the graph of a network, as it runs."""

    reads_lists = False
    prepared = Predictor.prepared
    at_batches = Predictor.at_batches

    @property
    def depends_on_devices(self) -> bool:
        """Whether several devices matter: each does the same."""
        return False

    def terms(
        self, network: Network, setting: Setting, platform: Platform
    ) -> tuple[dict[str, float], Sequence[str]]:
        """Return what the quantity is linear in, and which operators are not counted in it."""
        raise NotImplementedError

    def rows(
        self, networks: Sequence[Any], how: Sequence[tuple[Setting, Platform]]
    ) -> list[dict[str, float]]:
        """Return the terms of each network under its setting on its platform."""
        pairs = zip(networks, how, strict=True)
        return [self.terms(network, *own)[0] for network, own in pairs]

    def account(self, network: Network, setting: Setting, platform: Platform) -> Account:
        """Say whether a network is extrapolated, and which operators are not counted."""
        row, left_out = self.terms(network, setting, platform)
        outside = self.fit_for(setting, platform).outside(row)
        return Account(INFERRED_FROM, {}, {}, outside, tuple(left_out))


class ConvMeter(LinearInTotals):
    """ConvMeter as published: ordinary least squares.

    A forward pass, an inference or a backward pass is c1 FLOPs + c2 Inputs + c3 Outputs + c4
    (equations 2 and 3, section 3.2; the totals are those of the batch of one device). The gradient
    update is c1 L on one device and c1 L + c2 W + c3 N on N of them (section 3.3; L layers, W
    weights). A training step is the sum (equation 1); sums of least squares are the least squares
    of the sum, so that it has the seven coefficients of the combined backward pass and update.

    For networks without convolutions, of which the paper says nothing, Inputs and Outputs are those
    of the products with weights.
    """

    method = "convmeter"
    relative = False
    non_negative = False

    def columns(self, network: Counted, devices: int) -> dict[str, float]:
        """Return the metrics of section 3 that the quantity needs."""
        totals = network.totals
        columns: dict[str, float] = {}
        if self.quantity_ != "update_ms":
            columns |= {
                "flops": totals.flops,
                _CONSTANT: 1.0,
                "outputs": totals.outputs,
                "inputs": totals.inputs,
            }
        if self.quantity_ in _UPDATING:
            several = float(devices > 1)
            columns |= {
                "layers": totals.layers,
                "weights": totals.weights * several,
                _DEVICES: devices * several,
            }
        return columns

    def remarks(self, network: Counted) -> Sequence[str]:
        """Say what was summed of a network without convolutions."""
        totals = network.totals
        if totals.summed == "convolutions":
            return ()
        return (
            f"{network.name} has no convolutions: inputs and outputs of its products with weights "
            f"are summed, and {self.method} is made for convolutional networks",
        )


class ConvMeterRelative(ConvMeter):
    """ConvMeter's form, by least squares of relative errors: short times count as long ones do."""

    method = "convmeter-relative"
    relative = True


class OperatorTotals(LinearInTotals):
    """Ours, not ConvMeter's: totals of all operators and by their sort, relative errors.

    Multiply-adds, values that operators read and write, and weights, of all operators and again of
    each sort; the number of operators, once and for each image of the batch; a constant. A training
    step also has the weights, the operators with weights, and on several devices the exchange of
    gradients. No coefficient is negative. That of a sort is what it costs beyond what it has in
    common with all, and is drawn to zero: few networks tell the sorts apart, and a sort that hardly
    any has costs what the others do.
    """

    method = "operator-totals"
    parts: ClassVar[Mapping[str, str]] = {
        f"{total} of {sort} operators": total for sort in SORTS for total in _OF_SORTS
    }

    def columns(self, network: Counted, devices: int) -> dict[str, float]:
        """Return the totals that the quantity needs."""
        columns: dict[str, float] = {_CONSTANT: 1.0}
        if self.quantity_ != "update_ms":
            by_sort = network.by_sort
            operators = float(sum(operation.times for operation in by_sort.values()))
            columns |= dict.fromkeys(_OF_SORTS, 0.0)
            columns |= {"operators": operators, "operators x images": operators * network.images}
            for sort, own in by_sort.items():
                for total, value in zip(_OF_SORTS, (own.macs, own.data, own.weights), strict=True):
                    columns[total] += value
                    columns[f"{total} of {sort} operators"] = value
        if self.quantity_ in _UPDATING:
            weights, several = network.weights, float(devices > 1)
            columns["weights"] = weights
            columns["layers"] = network.totals.layers
            # A ring exchanges twice all gradients but a device's own share.
            columns["exchanged weights"] = several * weights * (devices - 1) / devices
            columns[_DEVICES] = devices * several
        return columns
