"""Train GHN-2 on writing the weights of random networks (PredictDDL's offline trainer, III-G).

The loss is the cross entropy of networks whose weights GHN-2 wrote, the mean over 8 random ones;
Adam at 1e-3, decay 1e-5, gradients cut at norm 5, the rate a tenth from 2/3 and a hundredth from
5/6 of the time on, all as published. Smaller than published, for an hour on two cores: images of 16
pixels, 32 a step; the decoder makes at most 64 x 64 x 7 x 7 weights (published: 64 x 64 x 11 x 11)
by layers of 64, 128 and 4,096 (128, 256 and 4,096), and larger weights repeat them.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from resperf.errors import NetworkError, TrainingError, first_line
from resperf.features.ghn2 import CHANNELS, GHN2, KERNELS, SIZE, Embedding, KnownNetwork
from resperf.features.primitives import TYPES, primitive_graph
from resperf.files import write_whole
from resperf.grouping import grouped
from resperf.network import Network, read_network
from resperf.network.files import shipped_networks
from resperf.quantities import EXECUTION, STEP
from resperf.training.random_cells import (
    CLASSES,
    PIXELS,
    Primitive,
    graph_of_primitives,
    random_network,
)
from resperf.training.rows import network_examples, network_quantities

_META_BATCH, _IMAGES = 8, 32
_WIDEST, _LARGEST_KERNEL = 64, 7
_RATE, _DECAY, _CLIP = 1e-3, 1e-5, 5.0
_SAVE_EVERY_S = 30.0
_HELD_OUT, _HELD_OUT_IMAGES = 200, 64
_TRAINING, _JUDGING = 0, 1
"""Streams of random numbers: no network or image that is learnt from is judged."""


def shapes_images(count: int, seed: Sequence[int]) -> tuple[Any, Any]:
    """Draw images of ten classes: a hue each, shared out among five shapes.

    Hues scatter so much that a colour alone tells the class in 70% of the images; the next hues are
    of other shapes.

    Returns
    -------
    images : ndarray, (count, 3, 16, 16)
        Noisy, of about mean 0 and deviation 1; place, size and ground are random.
    classes : ndarray of int, (count,)
    """
    rng = np.random.default_rng(seed)
    classes = rng.integers(CLASSES, size=count)
    centres = PIXELS / 2 - 0.5 + rng.uniform(-2.5, 2.5, (2, count, 1, 1))
    radius = rng.uniform(3.5, 6.5, (count, 1, 1))
    y, x = np.arange(PIXELS)[:, None] - centres[0], np.arange(PIXELS) - centres[1]
    square = np.maximum(abs(x), abs(y))
    masks = np.stack([
        np.hypot(x, y) < radius,
        (square < radius) & (square > radius - 1.8),
        (square < radius) & (np.minimum(abs(x), abs(y)) < 1.2),
        (square < radius) & (np.floor(y / 2) % 2 == 0),
        (square < radius) & (np.floor(x / 2) % 2 == 0),
    ])  # fmt: skip
    mask = masks[classes % 5, np.arange(count)][:, None]
    hues = (classes + rng.normal(0, 0.48, count)) * 2 * np.pi / CLASSES
    colours = 2 * np.cos(hues[:, None] - np.arange(3) * 2 * np.pi / 3)[..., None, None]
    ground = rng.uniform(-1, 1, (count, 1, 1, 1))
    images = np.where(mask, colours, ground) + rng.normal(0, 0.4, (count, 3, PIXELS, PIXELS))
    return images.astype(np.float32), classes


def new_weights(seed: int, *, shapes: bool) -> dict[str, Any]:
    """Draw the weights of a graph network, as `GHN2` has them, and of its decoder.

    Channels that no random network has keep the vector that they begin with, a smooth function of
    their logarithm, so that similar ones stay similar.
    """
    random, area = torch.Generator().manual_seed(seed), _LARGEST_KERNEL**2
    weights = {"types": torch.randn((len(TYPES), SIZE), generator=random)}
    if shapes:
        angles = np.log2(1 + CHANNELS)[:, None] * np.array([0.25, 0.5, 1, 2])
        weights["channels"] = torch.tensor(np.hstack([np.sin(angles), np.cos(angles)])).float()
        weights["kernels"] = torch.randn((len(KERNELS), SIZE // 4), generator=random)
    layers = {
        **{f"gru.{name}": (SIZE, 3 * SIZE) for name in ("read", "held")},
        **{f"{name}.0": (SIZE, SIZE // 2) for name in ("mlp", "mlp_sp")},
        **{f"{name}.1": (SIZE // 2, SIZE) for name in ("mlp", "mlp_sp")},
        "decoder.kernel": (SIZE, 64 * area), "decoder.hidden": (64, 128),
        "decoder.conv": (128, _WIDEST**2), "decoder.classes": (128, CLASSES * _WIDEST),
        "decoder.vector": (SIZE, 64), "decoder.norm": (64, 128),
    }  # fmt: skip
    for name, (inputs, outputs) in layers.items():
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = torch.rand(shape, generator=random) * 2 - 1
            weights[f"{name}.{part}"] = drawn / inputs**0.5
    weights |= {"norm.weight": torch.ones(SIZE), "norm.bias": torch.zeros(SIZE)}
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def scores_of(ghn2: GHN2, networks: Sequence[Sequence[Primitive]], images: Any) -> list[Any]:
    """Return each network's scores of the images' classes, by the weights that are written for it.

    Parameters
    ----------
    ghn2 : GHN2
        Of tensors, with the weights of a decoder (`new_weights`).
    networks : sequence
        Of nodes in order.
    images : Tensor
        (images, 3, 16, 16).

    Returns
    -------
    list of Tensor
        (images, classes) each.
    """
    nodes: list[Primitive] = []
    for network in networks:
        first = len(nodes)
        nodes += (
            replace(node, inputs=tuple(first + index for index in node.inputs)) for node in network
        )
    written = iter(_written(ghn2, nodes))
    return [_run(network, list(islice(written, len(network))), images) for network in networks]


def _written(ghn2: GHN2, nodes: Sequence[Primitive]) -> list[Any]:
    """Return what the decoder writes: weights, a norm's scale and bias, None without weights.

    Scaled by operator, as GHN-2 does: a convolution's by sqrt(beta / fan-in), beta 1 of depthwise
    ones and lines, else 2; a norm's scale is 2 sigmoid(x / 2), a bias tanh(x / 5).
    """
    written: list[Any] = [None] * len(nodes)
    states = ghn2.states(graph_of_primitives(nodes))
    by_shape = grouped((node.shape, index) for index, node in enumerate(nodes) if node.shape)
    kernels = ghn2.linear("decoder.kernel", states)
    kernels = kernels.view(-1, _LARGEST_KERNEL, _LARGEST_KERNEL, 64).relu()
    for shape, indices in by_shape.items():
        if len(shape) == 1:
            hidden = ghn2.linear("decoder.vector", states[indices]).relu()
            pairs = ghn2.linear("decoder.norm", hidden).view(-1, 2, _WIDEST)
            pairs = pairs.repeat(1, 1, -(-shape[0] // _WIDEST))[:, :, : shape[0]]
            scales, biases = 2 * torch.sigmoid(pairs[:, 0] / 2), torch.tanh(pairs[:, 1] / 5)
            decoded = [
                bias if nodes[index].type == "bias" else (scale, bias)
                for index, scale, bias in zip(indices, scales, biases, strict=True)
            ]
        else:
            top, left = ((_LARGEST_KERNEL - side) // 2 for side in shape[2:])
            cut = kernels[indices, top : top + shape[2], left : left + shape[3]]
            beta = 1 if shape[1] == 1 or shape[2] != shape[3] else 2
            decoded = _channels(ghn2, cut, shape) * (beta / math.prod(shape[1:])) ** 0.5
        for index, weight in zip(indices, decoded, strict=True):
            written[index] = weight
    return written


def _channels(ghn2: GHN2, cut: Any, shape: tuple[int, ...]) -> Any:
    """Write only the channels that are needed: (nodes, h, w, 64) -> (nodes, *shape)."""
    outputs, inputs = (min(side, _WIDEST) for side in shape[:2])
    # Nothing but the last layer has as many outputs as there are classes.
    name, rows = ("classes", CLASSES) if outputs == CLASSES else ("conv", _WIDEST)
    weight, bias = (
        ghn2.weights[f"decoder.{name}.{part}"].view(rows, _WIDEST, -1)[:outputs, :inputs]
        for part in ("weight", "bias")
    )
    hidden = ghn2.linear("decoder.hidden", cut).relu()
    decoded = torch.einsum("nhwk,oik->noihw", hidden, weight) + bias[..., None]
    repeats = (-(-shape[0] // outputs), -(-shape[1] // inputs), 1, 1)
    return decoded.repeat(1, *repeats)[:, : shape[0], : shape[1]]


def _run(nodes: Sequence[Primitive], written: Sequence[Any], images: Any) -> Any:
    """Run a network; norms use the batch's own statistics."""
    values = [images]
    for node, weight in zip(nodes[1:], written[1:], strict=True):
        x, *others = (values[index] for index in node.inputs)
        values.append(_RUN[node.type](node, x.relu() if node.relu else x, others, weight))
    return values[-1].flatten(1)


def _conv(node: Primitive, x: Any, _: Any, weight: Any) -> Any:
    padding = [side // 2 * node.dilation for side in node.shape[2:]]
    groups = x.shape[1] if node.type in ("sep_conv", "dil_conv") else 1
    return F.conv2d(x, weight, None, node.stride, padding, node.dilation, groups)


def _attention(_: Primitive, query: Any, others: Any, __: Any) -> Any:
    tokens = [x.flatten(2).transpose(1, 2) for x in (query, *others)]
    return F.scaled_dot_product_attention(*tokens).transpose(1, 2).view_as(query)


def _layer_norm(node: Primitive, x: Any, _: Any, weight: Any) -> Any:
    return F.layer_norm(x.movedim(1, -1), node.shape, *weight).movedim(-1, 1)


_RUN: Mapping[str, Callable[[Primitive, Any, Any, Any], Any]] = {
    "max_pool": lambda node, x, _, __: F.max_pool2d(x, 3, node.stride, 1),
    "avg_pool": lambda node, x, _, __: F.avg_pool2d(x, 3, node.stride, 1),
    **dict.fromkeys(("conv", "sep_conv", "dil_conv"), _conv),
    "msa": _attention,
    "cse": lambda _, x, others, __: x * torch.sigmoid(others[0]),
    "sum": lambda _, x, others, __: x + others[0],
    "concat": lambda _, x, others, __: torch.cat([x, *others], 1),
    "bias": lambda _, x, __, weight: x + weight[:, None, None],
    "bn": lambda _, x, __, weight: F.batch_norm(x, None, None, weight[0], weight[1], training=True),
    "ln": _layer_norm,
    "pos_enc": lambda _, x, __, weight: x + weight[:, 0],
    "glob_avg": lambda _, x, __, ___: x.mean((2, 3), keepdim=True),
}


class EmbeddingTrainer:
    """Trains a graph network and its decoder.

    Parameters
    ----------
    variant : str
        Of `VARIANTS`.
    checkpoint : Path
        Written at least every minute, in one step; if it exists, training goes on from there.
    seed : int

    Raises
    ------
    TrainingError
        If the checkpoint is of another training.
    """

    def __init__(self, variant: str, checkpoint: Path, seed: int = 0) -> None:
        self.checkpoint, self.seed = checkpoint, seed
        self.variant, self.made_of = variant, f"{variant}, seed {seed}"
        self.ghn2 = GHN2(new_weights(seed, shapes=variant == "ghn2"), torch)
        # Adam would take the rows of tables that no network reads to zero, however small the decay.
        decayed = grouped(("." in name, w) for name, w in self.ghn2.weights.items())
        self.adam = torch.optim.Adam(
            [{"params": decayed[True], "weight_decay": _DECAY}, {"params": decayed[False]}],
            lr=_RATE,
        )
        self.seconds, self.step = 0.0, 0
        if checkpoint.exists():
            self._resume()

    def _resume(self) -> None:
        try:
            state = torch.load(self.checkpoint, weights_only=True)
            if state["made_of"] != self.made_of:
                raise ValueError(f"it is of {state['made_of']}")
            with torch.no_grad():
                for name, weight in self.ghn2.weights.items():
                    weight.copy_(state["weights"][name])
            self.adam.load_state_dict(state["adam"])
            self.seconds, self.step = state["seconds"], state["step"]
        except Exception as error:
            raise TrainingError(
                f"{self.checkpoint} is no checkpoint of {self.made_of} ({first_line(error)}); "
                "choose another output or remove it"
            ) from error

    def save(self) -> None:
        """Write the checkpoint."""
        content = io.BytesIO()
        weights = {name: weight.detach() for name, weight in self.ghn2.weights.items()}
        state = {"seconds": self.seconds, "step": self.step, "weights": weights}
        torch.save({"made_of": self.made_of, "adam": self.adam.state_dict(), **state}, content)
        write_whole(self.checkpoint, content.getvalue())

    def train(self, minutes: float, progress: Callable[[int, float], None]) -> None:
        """Train for so many minutes in all, those before a kill included.

        `progress` is called with the steps so far and the last ones' mean accuracy, two times a
        minute.
        """
        accuracies: list[float] = []
        started = time.monotonic() - self.seconds
        saved = self.seconds
        while self.seconds < 60 * minutes:
            share = self.seconds / (60 * minutes)
            for group in self.adam.param_groups:
                group["lr"] = _RATE * 0.1 ** ((share > 2 / 3) + (share > 5 / 6))
            accuracies.append(self.train_step())
            self.seconds = time.monotonic() - started
            if self.seconds - saved > _SAVE_EVERY_S:
                self.save()
                progress(self.step, float(np.mean(accuracies)))
                saved, accuracies = self.seconds, []
        self.save()

    def train_step(self) -> float:
        """Learn from 8 new networks; return their mean accuracy on the step's images."""
        stream = [self.seed, _TRAINING, self.step]
        rng = np.random.default_rng(stream)
        networks = [random_network(rng) for _ in range(_META_BATCH)]
        images, classes = map(torch.tensor, shapes_images(_IMAGES, stream))
        scores = torch.stack(scores_of(self.ghn2, networks, images))
        self.adam.zero_grad()
        F.cross_entropy(scores.flatten(0, 1), classes.repeat(_META_BATCH)).backward()
        # A step with a network that overflows teaches nothing.
        if torch.nn.utils.clip_grad_norm_(self.ghn2.weights.values(), _CLIP).isfinite():
            self.adam.step()
        self.step += 1
        return float((scores.argmax(-1) == classes).float().mean())


def held_out_accuracy(ghn2: GHN2, seed: int) -> float:
    """Return the mean accuracy of random networks, none of which, nor an image, was learnt from."""
    accuracies = []
    for index in range(_HELD_OUT):
        stream = [seed, _JUDGING, index]
        images, classes = map(torch.tensor, shapes_images(_HELD_OUT_IMAGES, stream))
        with torch.no_grad():
            (scores,) = scores_of(ghn2, [random_network(np.random.default_rng(stream))], images)
        accuracies.append(float((scores.argmax(-1) == classes).float().mean()))
    return float(np.mean(accuracies))


def trained_embedding(
    trainer: EmbeddingTrainer, datasets: Sequence[Path]
) -> tuple[Embedding, list[str]]:
    """Return a training's result, and the networks that are shipped or in datasets.

    Returns
    -------
    embedding : Embedding
        Its weights rounded as its file rounds them.
    notes : list of str
        Which networks were left out, and why.
    """
    weights = {
        name: weight.detach().numpy().astype(np.float16).astype(float)
        for name, weight in trainer.ghn2.weights.items()
        if not name.startswith("decoder.")
    }
    untrained = GHN2(new_weights(trainer.seed, shapes=trainer.variant == "ghn2"), torch)
    training = {
        "variant": trainer.variant, "seed": trainer.seed, "steps": trainer.step,
        "minutes": round(trainer.seconds / 60, 1), "chance": 1 / CLASSES,
        "accuracy": held_out_accuracy(trainer.ghn2, trainer.seed),
        "untrained": held_out_accuracy(untrained, trainer.seed),
    }  # fmt: skip
    networks, notes = _known_networks(GHN2(weights), datasets)
    return Embedding(GHN2(weights), training, networks), notes


def _known_networks(ghn2: GHN2, datasets: Sequence[Path]) -> tuple[list[KnownNetwork], list[str]]:
    networks: dict[tuple[str, Any], KnownNetwork] = {}
    notes: dict[str, None] = {}

    def add(network: Network, *runs: Mapping[str, Any]) -> None:
        try:
            graph = primitive_graph(network).folded()
        except NetworkError as error:
            notes[f"left out: {error}"] = None
            return
        # Exporters write the same nodes in other orders.
        key = network.name, tuple(sorted(zip(graph.types, graph.shapes, strict=True)))
        if key not in networks:
            networks[key] = KnownNetwork(network.name, ghn2.embed(graph), [])
        networks[key].runs.extend(runs)

    for path in shipped_networks().values():
        add(read_network(path))
    for dataset in datasets:
        for quantity in sorted({EXECUTION, STEP} & {*network_quantities(dataset)}):
            rows = network_examples(dataset, quantity, left_out=[])
            rows_of = zip(rows.networks, rows.values, rows.settings, rows.platforms, strict=True)
            for network, value, setting, platform in rows_of:
                run = {"device": platform.device, "framework": setting.framework}
                how = {"precision": setting.precision, "batch": setting.batch}
                add(network, {**run, **how, quantity: float(f"{value:.4g}")})
    return list(networks.values()), list(notes)
