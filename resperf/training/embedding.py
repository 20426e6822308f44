"""Train GHN-2 on writing the weights of random networks (PredictDDL's offline trainer, III-G).

The loss is the cross entropy of networks whose weights GHN-2 wrote, the mean over 8 random ones;
Adam at 1e-3, decay 1e-5, gradients cut at norm 5, the rate a tenth from 2/3 and a hundredth from
5/6 of the time on, all as published. Smaller than published, for an hour on two cores: images of 16
pixels, 32 a step; the decoder makes at most 64 x 64 x 7 x 7 weights (published: 64 x 64 x 11 x 11)
by layers of 64, 128 and 4,096 (128, 256 and 4,096), and larger weights repeat them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from resperf.errors import TrainingError, first_line
from resperf.features.ghn2 import CHANNELS, KERNELS, SIZE, codes
from resperf.features.primitives import TYPES
from resperf.files import write_whole
from resperf.grouping import grouped
from resperf.training.random_cells import (
    CLASSES,
    PIXELS,
    Primitive,
    graph_of_primitives,
    random_network,
)

_META_BATCH, _IMAGES = 8, 32
_WIDEST, _LARGEST_KERNEL = 64, 7
_RATE, _DECAY, _CLIP = 1e-3, 1e-5, 5.0
_SAVE_EVERY_S = 30.0
_HELD_OUT, _HELD_OUT_IMAGES = 200, 128
_TRAINING, _JUDGING = 0, 1
"""Streams of random numbers: no network or image that is learnt from is judged."""

Progress = Callable[[float, int, float], None]
"""Called with minutes, steps and the mean accuracy of the last 100 steps."""


def shapes_images(count: int, seed: Sequence[int]) -> tuple[Any, Any]:
    """Draw images of ten classes: five shapes, each in warm and in cold colours.

    Returns
    -------
    images : ndarray, (count, 3, 16, 16)
        Noisy, of about mean 0 and deviation 1; place, size and colours are random.
    classes : ndarray of int, (count,)
    """
    rng = np.random.default_rng(seed)
    classes = rng.integers(CLASSES, size=count)
    centres = PIXELS / 2 - 0.5 + rng.uniform(-2.5, 2.5, (2, count, 1, 1))
    radius = rng.uniform(3.5, 6.5, (count, 1, 1))
    place = np.arange(PIXELS)
    y, x = place[:, None] - centres[0], place[None, :] - centres[1]
    square = np.maximum(abs(x), abs(y))
    masks = np.stack([
        np.hypot(x, y) < radius,
        (square < radius) & (square > radius - 1.8),
        (square < radius) & (np.minimum(abs(x), abs(y)) < 1.2),
        (square < radius) & (np.floor(y / 2) % 2 == 0),
        (square < radius) & (np.floor(x / 2) % 2 == 0),
    ])  # fmt: skip
    mask = masks[classes % 5, np.arange(count)][:, None]
    high, low = rng.uniform(0.8, 2, (count, 1, 1)), rng.uniform(-2, -0.8, (count, 1, 1))
    warm = (classes // 5 == 0)[:, None, None]
    colour = np.stack([np.where(warm, high, low), rng.uniform(-1, 1, (count, 1, 1)),
                       np.where(warm, low, high)], 1)  # fmt: skip
    ground = rng.uniform(-1, 1, (count, 1, 1, 1)) + rng.normal(0, 0.2, (count, 3, 1, 1))
    images = np.where(mask, colour, ground) + rng.normal(0, 0.4, (count, 3, PIXELS, PIXELS))
    return images.astype(np.float32), classes


def new_weights(seed: int, *, shapes: bool) -> dict[str, Any]:
    """Draw the weights of a graph network, as `resperf.features.ghn2.GHN2` has them, and a decoder.

    Channels that no random network has keep the vector that they begin with, a smooth function of
    their logarithm, so that similar ones stay similar.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(inputs: int, *shape: int) -> Any:
        return (torch.rand(shape, generator=random) * 2 - 1) / inputs**0.5

    weights = {"types": torch.randn((len(TYPES), SIZE), generator=random)}
    if shapes:
        angles = np.log2(1 + np.maximum(CHANNELS, 0))[:, None] * np.array([0.25, 0.5, 1, 2])
        weights["channels"] = torch.tensor(np.hstack([np.sin(angles), np.cos(angles)])).float()
        weights["kernels"] = torch.randn((len(KERNELS), SIZE // 4), generator=random)
    layers = {"gru": (SIZE, 3 * SIZE)}
    for name in ("mlp", "mlp_sp"):
        layers |= {f"{name}.0": (SIZE, SIZE // 2), f"{name}.1": (SIZE // 2, SIZE)}
    area = _LARGEST_KERNEL**2
    layers |= {
        "decoder.kernel": (SIZE, 64 * area), "decoder.hidden": (64, 128),
        "decoder.conv": (128, _WIDEST**2), "decoder.classes": (128, CLASSES * _WIDEST),
        "decoder.vector": (SIZE, 64), "decoder.scale": (64, _WIDEST), "decoder.bias": (64, _WIDEST),
    }  # fmt: skip
    for name, (inputs, outputs) in layers.items():
        if name == "gru":
            for part in ("ih", "hh"):
                weights[f"gru.weight_{part}"] = uniform(SIZE, outputs, inputs)
                weights[f"gru.bias_{part}"] = uniform(SIZE, outputs)
        else:
            weights[f"{name}.weight"] = uniform(inputs, outputs, inputs)
            weights[f"{name}.bias"] = uniform(inputs, outputs)
    weights |= {"norm.weight": torch.ones(SIZE), "norm.bias": torch.zeros(SIZE)}
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def written_weights(
    weights: Mapping[str, Any], networks: Sequence[Sequence[Primitive]]
) -> Iterator[tuple[Sequence[Primitive], Sequence[Any]]]:
    """Yield each network and the weights that are written for its nodes."""
    nodes = [node for network in networks for node in network]
    written = iter(decoded(weights, nodes, node_states(weights, networks)))
    yield from ((network, list(islice(written, len(network)))) for network in networks)


def node_states(weights: Mapping[str, Any], networks: Sequence[Sequence[Primitive]]) -> Any:
    """Return the states of all networks' nodes after one traversal, (nodes, 32).

    As `GHN2.embed` before its mean, for several networks side by side and level after level: nodes
    between which no path leads do not read each other.
    """
    graphs = [graph_of_primitives(list(nodes)) for nodes in networks]
    rows = torch.tensor(np.concatenate([codes(graph) for graph in graphs]))
    states = weights["types"][rows[:, 0]]
    if "channels" in weights:
        of_shape = [weights["channels"][rows[:, side]] for side in (1, 2)]
        of_shape += [weights["kernels"][rows[:, side]] for side in (3, 4)]
        states = states + torch.cat(of_shape, 1)
    matrices = [graph.path_weights() for graph in graphs]
    direct, virtual = (
        torch.block_diag(*(torch.tensor(pair[side]).float() for pair in matrices))
        for side in (0, 1)
    )
    states = _traverse(weights, states, direct, virtual, _levels(matrices, backwards=False))
    states = _traverse(weights, states, direct.T, virtual.T, _levels(matrices, backwards=True))
    return F.layer_norm(states, (SIZE,), weights["norm.weight"], weights["norm.bias"])


def _levels(matrices: Sequence[tuple[Any, Any]], *, backwards: bool) -> list[Any]:
    """Return indices of nodes by the longest path that leads to them, over all networks."""
    levels: list[int] = []
    for direct, _ in matrices:
        count = len(direct)
        own = [0] * count
        for node in range(count)[:: -1 if backwards else 1]:
            before = np.flatnonzero(direct[:, node] if backwards else direct[node])
            own[node] = 1 + max((own[index] for index in before), default=-1)
        levels += own
    array = np.array(levels)
    return [torch.tensor(np.flatnonzero(array == level)) for level in range(array.max() + 1)]


def _traverse(
    weights: Mapping[str, Any], states: Any, direct: Any, virtual: Any, levels: Sequence[Any]
) -> Any:
    gru = [weights[f"gru.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    near = far = torch.zeros_like(states)
    for rows in levels:
        message = direct[rows] @ near + virtual[rows] @ far
        new = torch.gru_cell(message, states[rows], *gru)
        states = states.index_copy(0, rows, new)
        near = near.index_copy(0, rows, _mlp(weights, "mlp", new))
        far = far.index_copy(0, rows, _mlp(weights, "mlp_sp", new))
    return states


def _mlp(weights: Mapping[str, Any], name: str, x: Any) -> Any:
    for layer in (0, 1):
        x = _linear(weights, f"{name}.{layer}", x).relu()
    return x


def _linear(weights: Mapping[str, Any], name: str, x: Any) -> Any:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def decoded(weights: Mapping[str, Any], nodes: Sequence[Primitive], states: Any) -> list[Any]:
    """Return the weights that the decoder writes for nodes, of one or more networks.

    A norm gets its scale and bias, a node without weights None.

    Scaled by operator, as GHN-2 does: a convolution's by sqrt(beta / fan-in), beta 2 behind which a
    positive part may follow and 1 of depthwise ones and lines; a norm's scale is 2 sigmoid(x / 2),
    a bias tanh(x / 5).
    """
    written: list[Any] = [None] * len(nodes)
    vectors = [index for index, node in enumerate(nodes) if len(node.shape) == 1]
    hidden = _linear(weights, "decoder.vector", states[vectors]).relu()
    scales = 2 * torch.sigmoid(_linear(weights, "decoder.scale", hidden) / 2)
    biases = torch.tanh(_linear(weights, "decoder.bias", hidden) / 5)
    for row, index in enumerate(vectors):
        bias = _tiled(biases[row], nodes[index].shape)
        is_bias = nodes[index].type == "bias"
        written[index] = bias if is_bias else (_tiled(scales[row], nodes[index].shape), bias)
    by_shape = grouped((node.shape, i) for i, node in enumerate(nodes) if len(node.shape) == 4)
    kernels = _linear(weights, "decoder.kernel", states)
    kernels = kernels.view(-1, _LARGEST_KERNEL, _LARGEST_KERNEL, 64)
    for shape, indices in by_shape.items():
        height, width = ((_LARGEST_KERNEL - side) // 2 for side in shape[2:])
        cut = kernels[indices, height : height + shape[2], width : width + shape[3]].relu()
        made = _channels(weights, _linear(weights, "decoder.hidden", cut).relu(), shape)
        beta = 1 if shape[1] == 1 or shape[2] != shape[3] else 2
        made = made * (beta / np.prod(shape[1:])) ** 0.5
        for index, weight in zip(indices, made, strict=True):
            written[index] = weight
    return written


def _channels(weights: Mapping[str, Any], hidden: Any, shape: tuple[int, ...]) -> Any:
    """Write only the channels that are needed: (nodes, h, w, 128) -> (nodes, *shape)."""
    outputs, inputs = (min(side, _WIDEST) for side in shape[:2])
    # Nothing but the last layer has so many channels.
    is_last = outputs == CLASSES
    name, rows = ("decoder.classes", CLASSES) if is_last else ("decoder.conv", _WIDEST)
    weight = weights[f"{name}.weight"].view(rows, _WIDEST, 128)[:outputs, :inputs]
    bias = weights[f"{name}.bias"].view(rows, _WIDEST)[:outputs, :inputs]
    made = torch.einsum("nhwk,oik->noihw", hidden, weight) + bias[:, :, None, None]
    repeats = [-(-side // most) for side, most in zip(shape[:2], (outputs, inputs), strict=True)]
    return made.repeat(1, *repeats, 1, 1)[:, : shape[0], : shape[1]]


def _tiled(vector: Any, shape: tuple[int, ...]) -> Any:
    return vector.repeat(-(-shape[0] // len(vector)))[: shape[0]]


def run(nodes: Sequence[Primitive], written: Sequence[Any], images: Any) -> Any:
    """Run a network on images by the weights of its nodes; norms use the batch's own statistics.

    Returns
    -------
    Tensor
        Scores of the classes, (images, classes).
    """
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


@dataclass
class EmbeddingTrainer:
    """Trains a graph network and its decoder; `run_minutes` may be called again.

    Attributes
    ----------
    variant : str
        ``ghn2`` or ``ghn2-paper``.
    checkpoint : Path
        Written at least every minute, in one step; training goes on from there if it exists.
    """

    variant: str
    checkpoint: Path
    seed: int = 0
    seconds: float = 0.0
    step: int = 0

    def __post_init__(self) -> None:
        self.weights = new_weights(self.seed, shapes=self.variant == "ghn2")
        tables = ("types", "channels", "kernels")
        # Adam would take rows that no network reads to zero, whatever their decay.
        groups = [
            {"params": [w for n, w in self.weights.items() if n not in tables],
             "weight_decay": _DECAY},
            {"params": [w for n, w in self.weights.items() if n in tables]},
        ]  # fmt: skip
        self.adam = torch.optim.Adam(groups, lr=_RATE)
        if self.checkpoint.exists():
            self._resume()

    def _resume(self) -> None:
        try:
            kept = torch.load(self.checkpoint, weights_only=True)
            found = (kept["variant"], kept["seed"])
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(kept["weights"][name])
            self.adam.load_state_dict(kept["adam"])
            self.seconds, self.step = kept["seconds"], kept["step"]
        except Exception as error:
            raise TrainingError(
                f"{self.checkpoint} is no checkpoint of this training ({first_line(error)}); "
                "choose another output or remove it"
            ) from error
        if found != (self.variant, self.seed):
            raise TrainingError(
                f"{self.checkpoint} is of variant {found[0]}, seed {found[1]}; choose another "
                "output, or ask for these"
            )

    def save(self) -> None:
        """Write the checkpoint."""
        content = io.BytesIO()
        torch.save(
            {"variant": self.variant, "seed": self.seed, "seconds": self.seconds, "step": self.step,
             "weights": {name: weight.detach() for name, weight in self.weights.items()},
             "adam": self.adam.state_dict()},
            content,
        )  # fmt: skip
        write_whole(self.checkpoint, content.getvalue())

    def run_minutes(self, minutes: float, progress: Progress) -> None:
        """Train until so many minutes were trained in all, those before a kill included."""
        accuracies: list[float] = []
        started = saved = time.monotonic() - self.seconds
        saved = time.monotonic()
        while self.seconds < 60 * minutes:
            share = self.seconds / (60 * minutes)
            for group in self.adam.param_groups:
                group["lr"] = _RATE * 0.1 ** ((share > 2 / 3) + (share > 5 / 6))
            accuracies.append(self.train_step())
            self.seconds = time.monotonic() - started
            if time.monotonic() - saved > _SAVE_EVERY_S:
                self.save()
                saved = time.monotonic()
                progress(self.seconds / 60, self.step, float(np.mean(accuracies[-100:])))
        self.save()

    def train_step(self) -> float:
        """Learn from 8 new networks; return their mean accuracy on the step's images."""
        rng = np.random.default_rng([self.seed, _TRAINING, self.step])
        networks = [random_network(rng) for _ in range(_META_BATCH)]
        images, classes = map(
            torch.tensor, shapes_images(_IMAGES, [self.seed, _TRAINING, self.step])
        )
        accuracies = []
        self.adam.zero_grad()
        loss = torch.zeros(())
        for nodes, written in written_weights(self.weights, networks):
            scores = run(nodes, written, images)
            one = F.cross_entropy(scores, classes)
            # A network that overflows must not end all training.
            if torch.isfinite(one):
                loss = loss + one / _META_BATCH
            accuracies.append(float((scores.argmax(1) == classes).float().mean()))
        if loss.requires_grad:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.weights.values(), _CLIP)
            self.adam.step()
        self.step += 1
        return float(np.mean(accuracies))


def held_out_accuracy(weights: Mapping[str, Any], seed: int, count: int = _HELD_OUT) -> float:
    """Return the mean accuracy of networks that were never learnt from, on images neither."""
    rng = np.random.default_rng([seed, _JUDGING])
    images, classes = map(torch.tensor, shapes_images(_HELD_OUT_IMAGES, [seed, _JUDGING]))
    accuracies = []
    with torch.no_grad():
        for _ in range(count):
            ((nodes, written),) = written_weights(weights, [random_network(rng)])
            scores = run(nodes, written, images)
            accuracies.append(float((scores.argmax(1) == classes).float().mean()))
    return float(np.mean(accuracies))
