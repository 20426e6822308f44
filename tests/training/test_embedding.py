"""GHN-2's trainer: what it writes, that it learns, and that nothing learnt is lost."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from resperf.cli.main import main  # noqa: E402 (only where PyTorch is)
from resperf.errors import BundleError, TrainingError  # noqa: E402
from resperf.features.ghn2 import CHANNELS, GHN2, KERNELS, SIZE, Embedding, codes  # noqa: E402
from resperf.features.primitives import TYPES, primitive_graph  # noqa: E402
from resperf.prediction.reading import read  # noqa: E402
from resperf.training import embedding, random_cells  # noqa: E402
from resperf.training.embedding import EmbeddingTrainer, scores_of  # noqa: E402
from resperf.training.random_cells import graph_of_primitives, random_network  # noqa: E402

ROOT = Path(__file__).parents[2]


def networks(count: int, seed: int = 0) -> list[list[random_cells.Primitive]]:
    rng = np.random.default_rng(seed)
    return [random_network(rng) for _ in range(count)]


@pytest.fixture
def trainer(tmp_path: Path) -> EmbeddingTrainer:
    return EmbeddingTrainer("ghn2", tmp_path / "ghn2.pt")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and judgements of a second."""
    for name, value in {"_META_BATCH": 1, "_HELD_OUT": 3, "_SAVE_EVERY_S": 0}.items():
        monkeypatch.setattr(embedding, name, value)


def test_tensors_of_several_networks_have_the_states_of_each_alone(trainer):
    drawn = networks(4)
    weights = {name: w.detach().numpy().astype(float) for name, w in trainer.ghn2.weights.items()}
    together, offset = [], 0
    for nodes in drawn:
        moved = [
            random_cells.Primitive(node.type, tuple(offset + i for i in node.inputs), node.shape)
            for node in nodes
        ]
        together, offset = together + moved, offset + len(nodes)
    states = trainer.ghn2.states(graph_of_primitives(together)).detach().numpy()
    alone = [GHN2(weights).states(graph_of_primitives(nodes)) for nodes in drawn]
    assert np.allclose(states, np.vstack(alone), atol=1e-4)


def test_random_networks_have_all_types_and_run_to_ten_classes(trainer):
    drawn = networks(60)
    images, classes = embedding.shapes_images(8, [1])
    seen = Counter(node.type for nodes in drawn for node in nodes)
    assert set(seen) == set(TYPES)
    sizes = [len(nodes) for nodes in drawn]
    assert 25 <= min(sizes) < 50 < 100 < max(sizes) < 250
    with torch.no_grad():
        for scores in scores_of(trainer.ghn2, drawn[:10], torch.tensor(images)):
            assert scores.shape == (8, 10)
            assert torch.isfinite(scores).all()
    assert networks(3) == networks(3) != networks(3, seed=1)
    assert sorted(set(classes)) == sorted(set(classes) & set(range(10)))


def test_images_are_told_apart_by_colour_and_shape_together():
    images, classes = embedding.shapes_images(4000, [5])
    assert images.shape == (4000, 3, 16, 16)
    assert abs(images.mean()) < 0.1
    assert 0.7 < images.std() < 1.2
    # The hue of the middle, where most shapes are, tells no more than 7 of 10 apart.
    middle = images[:, :, 5:11, 5:11].mean((2, 3)) - images[:, :, :2].mean((2, 3))
    angles = np.arctan2((middle[:, 1] - middle[:, 2]) * 3**0.5, 3 * (middle[:, 0] - middle.mean(1)))
    guessed = np.round(angles * 10 / (2 * np.pi)) % 10
    assert 0.3 < (guessed == classes).mean() < 0.72


def test_weights_are_scaled_by_what_they_are_of(trainer):
    nodes = [
        random_cells.Primitive("input", ()),
        random_cells.Primitive("conv", (0,), (100, 3, 5, 5)),
        random_cells.Primitive("sep_conv", (1,), (100, 1, 3, 3)),
        random_cells.Primitive("conv", (2,), (8, 100, 1, 7)),
        random_cells.Primitive("bn", (3,), (100,)),
        random_cells.Primitive("bias", (4,), (70,)),
    ]
    with torch.no_grad():
        for name, weight in trainer.ghn2.weights.items():
            if name.startswith("decoder."):
                weight.fill_(1.0 if name == "decoder.conv.bias" else 0.0)
        trainer.ghn2.weights["decoder.norm.bias"].fill_(0.5)
        written = embedding._written(trainer.ghn2, nodes)
    expected = [math.sqrt(2 / 75), math.sqrt(1 / 9), math.sqrt(1 / 700)]
    assert written[0] is None
    for node, weight, value in zip(nodes[1:4], written[1:4], expected, strict=True):
        assert weight.shape == node.shape
        assert weight.unique().tolist() == pytest.approx([value])
    scale, bias = written[4]
    assert scale.shape == bias.shape == (100,)
    assert scale.unique().tolist() == pytest.approx([2 / (1 + math.exp(-0.25))])
    assert bias.unique().tolist() == pytest.approx([math.tanh(0.1)])
    assert written[5].shape == (70,)


def test_it_learns_to_write_the_weights_of_a_network(trainer, quick):
    accuracies = []
    for _ in range(25):
        trainer.step = 11  # the same images and network each time, one of 32 nodes
        accuracies.append(trainer.train_step())
    assert accuracies[0] < 0.25
    assert np.mean(accuracies[-3:]) > 0.9


def test_rows_of_tables_that_nothing_reads_keep_their_values(trainer, quick):
    before = {name: trainer.ghn2.weights[name].detach().clone() for name in ("channels", "kernels")}
    read_rows = {"channels": set(), "kernels": set()}
    for step in range(3):
        nodes = random_network(np.random.default_rng([0, 0, step]))
        rows = codes(graph_of_primitives(nodes))
        read_rows["channels"] |= set(rows[:, 1:3].ravel().tolist())
        read_rows["kernels"] |= set(rows[:, 3:].ravel().tolist())
        trainer.train_step()
    for name, table in (("channels", CHANNELS), ("kernels", KERNELS)):
        changed = (trainer.ghn2.weights[name] != before[name]).any(1).nonzero()[:, 0].tolist()
        assert 0 < len(changed) < len(table)
        assert set(changed) <= read_rows[name]
    wide, wider, narrow = (int(np.argmin(abs(CHANNELS - width))) for width in (2048, 2080, 16))
    near = torch.linalg.norm(before["channels"][wide] - before["channels"][wider])
    assert near < 0.1 < torch.linalg.norm(before["channels"][wide] - before["channels"][narrow])


class Killed(BaseException):
    pass


def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path, quick, monkeypatch):
    file = tmp_path / "ghn2.pt"
    first = EmbeddingTrainer("ghn2", file)
    step_once, seen = EmbeddingTrainer.train_step, []

    def killing(self: EmbeddingTrainer) -> float:
        if len(seen) == 3:
            raise Killed
        seen.append(step_once(self))
        return seen[-1]

    monkeypatch.setattr(EmbeddingTrainer, "train_step", killing)
    with pytest.raises(Killed):
        first.train(60, lambda *_: None)
    again = EmbeddingTrainer("ghn2", file)
    assert again.step == 3
    assert 0 < again.seconds <= first.seconds
    for name, weight in first.ghn2.weights.items():
        assert torch.equal(weight, again.ghn2.weights[name])
    assert str(again.adam.state_dict()) == str(first.adam.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["ghn2.pt"]
    with pytest.raises(
        TrainingError, match=r"no checkpoint of ghn2-paper, seed 0 \(it is of ghn2,"
    ):
        EmbeddingTrainer("ghn2-paper", file)
    kept = file.read_bytes()
    file.write_bytes(kept[:1000])
    with pytest.raises(TrainingError, match="choose another output or remove it"):
        EmbeddingTrainer("ghn2", file)
    assert file.read_bytes() == kept[:1000]


def test_commands_train_a_file_and_compare_with_it(tmp_path, quick, capsys):
    file, dataset = tmp_path / "mine.npz", ROOT / "datasets" / "h200-torch-networks-amp.h5"
    command = ["train-embedding", "-o", str(file), "--minutes", "0.01", "--known", str(dataset)]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] >= 1
    assert document["chance"] == 0.1
    assert 0 <= document["untrained"] < 0.4
    assert file.stat().st_size < 200_000
    # 16 shipped networks and 13 measured ones; resnet50 and densenet121 are both.
    assert document["known"] == 27

    assert main(["similar", "resnet50", "--embedding", str(file), "--json"]) == 0
    nearest = json.loads(capsys.readouterr().out)["similar"]
    assert nearest[0]["network"] == "resnet50"
    # Measured on a file in which an exporter had folded the batch normalisations.
    assert nearest[0]["cosine"] == pytest.approx(1, abs=1e-6)
    assert {run["device"] for run in nearest[0]["runs"]} == {"h200"}
    assert all(first["cosine"] >= second["cosine"] for first, second in pairwise(nearest))
    assert main(["similar", "resnet50", "--embedding", str(file)]) == 0
    assert "h200 torch amp batch 1: execution " in capsys.readouterr().out

    file.write_bytes(b"no archive")
    assert main(["similar", "resnet50", "--embedding", str(file)]) == 2
    assert "neither ghn2 nor ghn2-paper nor a readable file" in capsys.readouterr().err


def test_a_file_has_the_vectors_of_its_weights(tmp_path, trainer, quick):
    made, notes = embedding.trained_embedding(trainer, [])
    file = tmp_path / "ghn2.npz"
    file.write_bytes(made.to_bytes())
    loaded = Embedding.load(str(file))
    assert notes == []
    assert len(loaded.networks) == 16
    assert loaded.training == made.training
    (network,) = read("vgg16", None)
    graph = primitive_graph(network)
    assert loaded.ghn2.embed(graph) == pytest.approx(made.ghn2.embed(graph), abs=1e-12)
    assert loaded.nearest(graph)[0][0] == pytest.approx(1, abs=1e-6)
    with pytest.raises(BundleError):
        Embedding.load(str(tmp_path / "none.npz"))


class Blocks(torch.nn.Module):
    """A convolution with a norm, a gate, a depthwise and a dilated one, attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1),
            nn.Sigmoid(),
        )  # fmt: skip
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.dilated = nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.norm, self.qkv, self.head = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.gelu(self.stem(x))
        x = x * self.gate(x)
        x = torch.cat([self.depthwise(x) + x, self.dilated(x)], 3)
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        query, key, value = self.qkv(tokens).chunk(3, 2)
        weights = (query @ key.transpose(1, 2) / 4).softmax(-1)
        return self.head((weights @ value).mean(1))


def test_two_exporters_write_the_same_graph(tmp_path):
    module = Blocks().eval()
    image = torch.zeros(1, 3, 8, 8)
    # One folds the batch normalisation, the other does not.
    torch.onnx.export(module, (image,), str(tmp_path / "script.onnx"), dynamo=False)
    torch.export.save(torch.export.export(module, (image,)), tmp_path / "program.pt2")
    graphs = [
        primitive_graph(read(tmp_path / name, None)[0]) for name in ("script.onnx", "program.pt2")
    ]
    counts = {
        "input": 1, "conv": 5, "bias": 7, "sep_conv": 1, "dil_conv": 1, "glob_avg": 2, "cse": 1,
        "sum": 1, "concat": 1, "ln": 1, "msa": 1,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=w.shape) / SIZE**0.5
        for name, w in embedding.new_weights(0, shapes=True).items()
    }
    first, second = (GHN2(weights).embed(graph.folded()) for graph in graphs)
    assert [Counter(graph.folded().types) for graph in graphs] == [counts, counts]
    assert "bn" in graphs[1].types
    assert second == pytest.approx(first, abs=1e-9)
