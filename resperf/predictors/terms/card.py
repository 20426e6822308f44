"""Terms relative to a card: the ms that each part of a layer's work would take at the card's peaks.

A coefficient is how many times longer than ideal a part takes, which is similar on all cards. So
one fit serves several cards, and cards of which only the data sheet is known.

Products are computed in tiles, each on one multiprocessor (SM), in waves of as many tiles as there
are multiprocessors. How frameworks choose tiles is not known: each of several sizes is a term, and
so is the best of them. Large products are limited by board power: a FLOP takes energy, which
depends on the process node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resperf.devices import DeviceFacts, device_facts
from resperf.features import Array
from resperf.targets import UNKNOWN
from resperf.units import MS_PER_S

LAUNCH = "launch"
"""The only constant, in ms: what the device needs for a kernel without work."""

_TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32))
"""Rows and columns of the result that one multiprocessor computes at a time."""
_STARTED = ((128, 128), (128, 32), (32, 32))
"""Tiles whose start and end, which do not depend on the depth, are terms."""
_CACHED_BYTES = 32.0
"""Bytes that a multiprocessor can read from the second-level cache in a cycle."""
_TILE_COST = 24.0
"""Small tiles read more: a tile of a x b takes 1 + 24 / sqrt(a b) times its operations."""
_PICOJOULES, _NODE_POWER = 4.2, 0.6
"""Energy of a FLOP in float32 is 4.2 pJ x (process node in nm)^0.6, from board power over the
FLOP/s of large products on cards that reach far less than their peak: 9.6 pJ at 4 nm (published:
RTX 4060 Ti and 4090 9.4 and 9.5), 15 at 8 nm (A6000 13, A40 16; a 3090 Ti took 21), 19 at
12 nm (NeuSight's T4 17 to 22). docs/how-it-works.md has the sources."""
_TYPE_ENERGY = {"fp32": 1.0, "tf32": 0.17, "fp16": 0.085, "bf16": 0.085, "int8": 0.043}
"""Energy of other types as a share of it: Vidur's large products in float16 run at 820 TFLOP/s on
an H100 of 700 W; the other types in proportion to their peaks."""
_ISSUED_SHARE, _WIDE_CORES, _ONE_ISSUE = 0.8, 128, 7
"""Of multiprocessors with 128 cores, each of the four schedulers must start a float32 operation
every cycle, so whatever else products do takes cycles from them: 77 and 79% of the peak are reached
(RTX 4060 Ti, H100). Before compute capability 7 schedulers started two instructions."""
_AMD = "gfx"
"""Begins the compute capability of AMD's cards."""
_STACKED_BITS = 1024
"""Width from which a memory bus is one of stacked memory (HBM)."""
_ROWS_PER_SM = 8
"""Rows of a reduction that one multiprocessor works on at a time."""
_WIDE_PRODUCTS = 2.0
"""Peak of products over that without tensor cores, from which Winograd's saves nothing: it needs
2.25 times fewer multiplications at least."""
_ALIGNED = 16
"""What aligned sizes are a multiple of, as sizes in networks usually are."""
_STARTING_CYCLES = 1000.0
"""Unit of the terms of starts, whose coefficients are near 1."""


@dataclass(frozen=True)
class Card:
    """A device as terms see it; facts that are not published are those of a nominal card.

    Attributes
    ----------
    device_class : str
    flops_per_ms, matrix_flops_per_ms : float
        Peaks of one type of values: without tensor cores or matrix cores, and of products.
    powered_flops_per_ms : float
        What board power allows.
    bytes_per_ms : float
    stacked : bool
        Whether it is stacked memory (HBM), whose bandwidth is easier to reach.
    cache_bytes : float
    multiprocessors, cycles_per_ms : float
    """

    device_class: str
    flops_per_ms: float
    matrix_flops_per_ms: float
    powered_flops_per_ms: float
    bytes_per_ms: float
    stacked: bool
    cache_bytes: float
    multiprocessors: float
    cycles_per_ms: float

    @classmethod
    def of(cls, device: str, number: str) -> Card:
        """Return a device; an unknown one is the nominal card, whose coefficients absorb the rest.

        Parameters
        ----------
        device : str
        number : str
            Type of values, a name of `resperf.devices.facts.Peaks`.
        """
        facts = device_facts(device)
        return NOMINAL if facts is None else _card(facts, number)


NOMINAL = Card(UNKNOWN, 1e10, 1e10, 1e10, 5e8, True, 4e6, 40.0, 1.5e6)
"""10 TFLOP/s and 500 GB/s: stands in where nothing is known."""


def _card(facts: DeviceFacts, number: str) -> Card:
    peaks = facts.peaks_flops_per_s
    plain = peaks.get(number if number == "fp64" else "fp32", peaks["fp32"])
    products = {**peaks, "fp32": plain * _issued_share(facts)}
    matrix = max(products.get(number, products["fp32"]), peaks.get("fp32_matrix", 0.0))
    node = _or_default(facts.process_nm, 10.0)
    joules = _PICOJOULES * 1e-12 * node**_NODE_POWER * _TYPE_ENERGY.get(number, 1.0)
    return Card(
        facts.device_class,
        plain / MS_PER_S,
        matrix / MS_PER_S,
        _or_default(facts.board_w / joules, math.inf) / MS_PER_S,
        facts.bandwidth_bytes_per_s / MS_PER_S,
        facts.memory_bus_bits >= _STACKED_BITS,
        float(facts.cache_bytes),
        _or_default(facts.multiprocessors, NOMINAL.multiprocessors),
        _or_default(facts.boost_mhz * 1e3, NOMINAL.cycles_per_ms),
    )


def _issued_share(facts: DeviceFacts) -> float:
    """Return which share of its float32 peak a device reaches in products."""
    generation = facts.compute_capability.partition(".")[0]
    one_issue = not generation.isdigit() or int(generation) >= _ONE_ISSUE
    wide = facts.cores_per_multiprocessor >= _WIDE_CORES
    return _ISSUED_SHARE if wide and one_issue and not generation.startswith(_AMD) else 1.0


def _or_default(fact: float, otherwise: float) -> float:
    return otherwise if math.isnan(fact) else fact


Quantities: TypeAlias = "Mapping[str, Array]"
Relative: TypeAlias = "Callable[[Quantities, Card], Mapping[str, Array]]"
"""Quantities of layers and their card -> named terms in ms, each of shape (rows,)."""


def card_terms(kind: str, q: Quantities, card: Card) -> dict[str, Array]:
    """Return the terms of layers on a card in ideal ms, each of shape (rows,).

    Parameters
    ----------
    kind : str
    q : mapping of str to array (rows,)
        As `resperf.features.quantities` returns them.
    card : Card
    """
    moved = q["moved_bytes"] / card.bytes_per_ms
    terms = {
        LAUNCH: np.ones_like(moved),
        "bytes": moved,
        "bytes not stacked": moved * (not card.stacked),
        "bytes beyond cache": np.where(q["moved_bytes"] > card.cache_bytes, moved, 0.0),
    }
    own = _OWN.get(kind, (_other,))
    return reduce(lambda merged, part: {**merged, **part(q, card)}, own, terms)


@dataclass(frozen=True)
class Product:
    """Sizes of matrix products, each an array (rows,): `count` of m x k by k x n."""

    count: Array
    m: Array
    n: Array
    k: Array

    @property
    def flops(self) -> Array:
        """Multiplications and additions."""
        return np.asarray(2 * self.count * self.m * self.n * self.k)


def product_of(kind: str, q: Quantities) -> Product | None:
    """Return the matrix products that layers of a kind are; None for kinds that are none."""
    names = _PRODUCTS.get(kind)
    if names is None:
        return None
    one = np.ones_like(q["moved_bytes"])
    return Product(*(q[name] if name else one for name in names))


_PRODUCTS = {
    "matmul": ("products", "rows", "columns", "depth"),
    "dense": ("", "batch", "features_out", "features_in"),
    "conv": ("groups", "m", "n", "k"),
}
"""Kind -> its quantities that are the fields of `Product`."""


def is_aligned(kind: str, q: Quantities) -> npt.NDArray[np.bool_]:
    """Return whether the sizes that lie in memory one after another are multiples of 16, (rows,).

    Sizes in networks usually are, sizes drawn at random hardly ever, and kernels of the two differ:
    loads of several values at once, and tiles that are full.
    """
    product = product_of(kind, q)
    sizes = (q[_WIDTHS.get(kind, "value_count")],) if product is None else (product.n, product.k)
    aligned: npt.NDArray[np.bool_] = np.logical_and.reduce([size % _ALIGNED == 0 for size in sizes])
    return aligned


def _product(kind: str) -> Relative:
    def terms(q: Quantities, card: Card) -> dict[str, Array]:
        product = product_of(kind, q)
        assert product is not None
        powered = product.flops / card.powered_flops_per_ms
        compute = np.maximum(product.flops / card.matrix_flops_per_ms, powered)
        moved = q["moved_bytes"] / card.bytes_per_ms
        each_bytes = q["out_bytes"] / (product.count * product.m * product.n)
        waves = {f"{a}x{b}": _waves_ms(product, card, a, b) for a, b in _TILES}
        best = reduce(np.minimum, (
            ms * (1 + _TILE_COST / math.sqrt(a * b))
            for ms, (a, b) in zip(waves.values(), _TILES, strict=True)
        ))  # fmt: skip
        starts = {
            f"starts of {a}x{b}": _tile_waves(product, card, a, b) * _STARTING_CYCLES
            / card.cycles_per_ms
            for a, b in _STARTED
        }  # fmt: skip
        read_again = (
            each_bytes
            * product.count
            * product.k
            * (product.m * np.ceil(product.n / 128) + product.n * np.ceil(product.m / 128))
        )
        cached = read_again / (card.multiprocessors * card.cycles_per_ms * _CACHED_BYTES)
        return {
            "flops": compute,
            "flops or bytes": np.maximum(compute, moved),
            **{f"waves of {tile}": np.maximum(ms, powered) for tile, ms in waves.items()},
            "best waves": np.maximum(best, powered),
            "depth": product.k / card.cycles_per_ms,
            "bytes of second": each_bytes * product.count * product.k * product.n
            / card.bytes_per_ms,
            "bytes of results": q["out_bytes"] / card.bytes_per_ms,
            "tiles read again": cached,
            **starts,
        }  # fmt: skip

    return terms


def _waves_ms(product: Product, card: Card, a: int, b: int) -> Array:
    """Return the ms of full waves of tiles: an incomplete one takes as long as a full one."""
    wave_ms = 2 * a * b * product.k * card.multiprocessors / card.matrix_flops_per_ms
    return np.asarray(_tile_waves(product, card, a, b) * wave_ms)


def _tile_waves(product: Product, card: Card, a: int, b: int) -> Array:
    tiles = product.count * np.ceil(product.m / a) * np.ceil(product.n / b)
    return np.asarray(np.ceil(tiles / card.multiprocessors))


def _conv(q: Quantities, card: Card) -> dict[str, Array]:
    """Return what other algorithms take: transforms by Winograd (2x2, 4x4) and Fourier.

    Only convolutions of 3x3 with stride 1 are computed by Winograd's, and none where tensor cores
    are faster. Where nothing else was measured, coefficients of the plain product may be zero: the
    products of other convolutions take the place of the transformed ones, and their tensors that of
    what is transformed.
    """
    images, channels = q["batch"], q["channels_in"] + q["channels_out"]
    filters = q["channels_in"] * q["channels_out"] / q["groups"]
    has_wide_products = card.matrix_flops_per_ms >= _WIDE_PRODUCTS * card.flops_per_ms
    fast = np.asarray((q["kernel_height"] == 3) & (q["kernel_width"] == 3) & (q["strided"] == 0)
                      & (q["dilated"] == 0) & (not has_wide_products))  # fmt: skip
    plain = product_of("conv", q)
    assert plain is not None
    reached_flops_per_ms = min(card.matrix_flops_per_ms, card.powered_flops_per_ms)
    terms = {
        "unfolded input": q["im2col_bytes"] / card.bytes_per_ms,
        "weights": q["weight_bytes"] / card.bytes_per_ms,
    }
    for size in (2, 4):
        tiles = images * np.ceil(q["rows_out"] / size) * np.ceil(q["columns_out"] / size)
        points = (size + 2) ** 2
        product = Product(
            np.full_like(tiles, points), tiles, q["channels_out"], q["channels_in"] / q["groups"]
        )
        moved = 4 * points * (tiles * channels + filters)
        for name, transformed, direct in (
            ("", product.flops / card.flops_per_ms, plain.flops / reached_flops_per_ms),
            (" waves", _waves_ms(product, card, 128, 64), _waves_ms(plain, card, 128, 64)),
            (" transforms", moved / card.bytes_per_ms, q["moved_bytes"] / card.bytes_per_ms),
        ):
            terms[f"winograd {size}{name}"] = np.where(fast, transformed, direct)
    side = 2 ** np.ceil(np.log2(np.maximum(q["height"] + 2, q["width"] + 2)))
    spectra = 4 * side * (side + 2) * (images * channels + filters)
    terms["fourier transforms"] = spectra / card.bytes_per_ms
    terms["fourier products"] = 4 * side * (side + 2) * images * filters / card.flops_per_ms
    return terms


def _rows(width: str) -> Relative:
    """Return the terms of kinds that reduce rows of this many values."""

    def terms(q: Quantities, card: Card) -> dict[str, Array]:
        rows, values = q["rows"], q[width]
        waves = np.ceil(rows / (card.multiprocessors * _ROWS_PER_SM))
        wide = 2 ** np.ceil(np.log2(values))
        return {
            "bytes of padded rows": q["moved_bytes"] * wide / values / card.bytes_per_ms,
            "waves of rows": waves * _STARTING_CYCLES / card.cycles_per_ms,
            "values in waves": waves * values / card.cycles_per_ms,
            "rows": rows / (card.multiprocessors * card.cycles_per_ms),
        }

    return terms


def _other(q: Quantities, card: Card) -> dict[str, Array]:
    return {"flops": q["flops"] / card.flops_per_ms, "values": q["value_count"] / card.flops_per_ms}


_WIDTHS = {"softmax": "values", "norm": "channels"}
"""Kind -> the quantity that is the number of values in a row that it reduces."""
_OWN: Mapping[str, Sequence[Relative]] = {
    "matmul": (_product("matmul"),),
    "dense": (_product("dense"),),
    "conv": (_product("conv"), _conv),
    **{kind: (_other, _rows(width)) for kind, width in _WIDTHS.items()},
}
"""Kind -> what its terms are beside launch and bytes; `_other` for kinds that are not here."""
