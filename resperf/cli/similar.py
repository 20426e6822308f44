"""`resperf similar` and `resperf train-embedding`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import HOW, Command, option
from resperf.errors import require
from resperf.features.ghn2 import VARIANTS, Embedding
from resperf.files import write_whole
from resperf.report.tables import percent_cell, table


@click.command(cls=Command, epilog="Example: resperf similar resnet50 --json")
@options.NETWORK
@options.SHAPE
@option(
    "--embedding", section=HOW, default=VARIANTS[0], show_default=True, metavar="E",
    help=f"{' or '.join(VARIANTS)} (types of operators alone), or a file of `train-embedding`.",
)  # fmt: skip
@options.JSON
def command(network: Path, shapes: dict[str, Any], embedding: str, as_json: bool) -> None:
    """Name the known networks that are most like NETWORK, and their measured times.

    Likeness is the cosine between GHN-2's vectors, which know operators, their order and the shapes
    of weights, but neither image size nor batch: alike networks need not take the same time.
    """
    from resperf.features.primitives import primitive_graph
    from resperf.prediction.reading import read

    (whole,) = read(network, None, shapes)
    graph = primitive_graph(whole)
    nearest = Embedding.load(embedding).nearest(graph)
    notes = [f"no type for {op} ({count} times)" for op, count in graph.unknown.items()]
    text = table(
        ("network", "cosine", "measured"),
        [
            [one.name, f"{cosine:.3f}", "; ".join(map(_run, one.runs[:2])) or "-"]
            for cosine, one in nearest
        ],
        text=("network", "measured"),
    )
    similar = [{"network": one.name, "cosine": cosine, "runs": one.runs} for cosine, one in nearest]
    document = {"network": whole.name, "embedding": embedding, "similar": similar, "notes": notes}
    options.show(as_json, document, text, notes)


def _run(run: Mapping[str, Any]) -> str:
    """Write a run: ``h200 torch fp32 batch 8: step 3.1 ms``."""
    where = f"{run['device']} {run['framework']} {run['precision']} batch {run['batch']}"
    times = (f"{name[:-3]} {value} ms" for name, value in run.items() if name.endswith("_ms"))
    return f"{where}: {', '.join(times)}"


@click.command(
    cls=Command,
    epilog="Example: resperf train-embedding -o mine.npz --minutes 60 --known my-networks.h5",
)
@options.output(
    "FILE.npz", "File to write; beside it, FILE.pt holds what training needs to go on.",
    required=True,
)  # fmt: skip
@option(
    "--variant", section=HOW, type=click.Choice(VARIANTS), default=VARIANTS[0], show_default=True,
    help="Whether the vectors know the shapes of weights, or types of operators alone.",
)  # fmt: skip
@option(
    "--minutes", section=HOW, type=options.POSITIVE, default=60, show_default=True, metavar="M",
    help="How long to train, earlier starts included.",
)  # fmt: skip
@options.paths("--known", "datasets", text="Dataset whose networks `similar` may name")
@options.JSON
def train_embedding(
    output: Path, variant: str, minutes: float, datasets: tuple[Path, ...], as_json: bool
) -> None:
    """Train GHN-2, whose vectors `similar` compares and `--method predictddl` learns from.

    It learns to write the weights of random networks that classify made images. The accuracy of
    networks that it never saw, by the weights that it writes, shows what it learnt.

    After an interruption the same command goes on, with at most half a minute lost.
    """
    if output.suffix != ".npz":
        raise click.UsageError(f"-o {output} must end in .npz")
    require("torch", "torch")
    from resperf.training.embedding import EmbeddingTrainer, trained_embedding

    trainer = EmbeddingTrainer(variant, output.with_suffix(".pt"))
    with options.bar_of_steps("minutes") as show:
        trainer.train(
            minutes,
            lambda step, accuracy: show(
                round(trainer.seconds / 60), round(minutes),
                f"{step} steps, accuracy {percent_cell(accuracy)}",
            ),
        )  # fmt: skip
    embedding, notes = trained_embedding(trainer, datasets)
    write_whole(output, embedding.to_bytes())
    facts = embedding.training
    text = (
        f"{output}: {variant}, {facts['steps']} steps in {facts['minutes']} minutes, "
        f"{len(embedding.networks)} known networks\naccuracy of 200 held-out networks: "
        f"{percent_cell(facts['accuracy'])} (untrained {percent_cell(facts['untrained'])}, chance "
        f"{percent_cell(facts['chance'])})"
    )
    document = {"path": str(output), **facts, "known": len(embedding.networks), "notes": notes}
    options.show(as_json, document, text, notes)
