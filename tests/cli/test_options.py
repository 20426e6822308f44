"""Options that several commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from resperf.cli._options import BATCH, NETWORK, SHAPE, BatchCommand, one_or_several


@click.command(cls=BatchCommand)
@NETWORK
@BATCH
@SHAPE
def command(network, batches, shapes) -> None:
    click.echo(f"{network} {batches} {shapes}")


def shown(*words: str) -> str:
    return CliRunner().invoke(command, words).output.strip()


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        ((), "()"),
        (("--batch", "8"), "(8,)"),
        (("--batch", "1", "8", "32"), "(1, 8, 32)"),
        (("--batch", "1", "--batch", "8"), "(1, 8)"),
        (("--batch", "1,8,32"), "(1, 8, 32)"),
        (("--batch=1", "8"), "(1, 8)"),
        (("--batch=1,2", "4,8"), "(1, 2, 4, 8)"),
    ],
)
def test_batches_may_be_written_in_several_ways(words, batches):
    assert shown("net.onnx", *words) == f"net.onnx {batches} {{}}"
    assert shown(*words, "net.onnx") == f"net.onnx {batches} {{}}"


def test_behind_two_dashes_a_number_is_a_file():
    assert shown("--batch", "1", "--", "8") == "8 (1,) {}"


@pytest.mark.parametrize("word", ["0", "x", "1.5", "1,0", "-3"])
def test_a_batch_must_be_a_positive_number(word):
    result = CliRunner().invoke(command, ["net.onnx", "--batch", word])
    assert result.exit_code == 2


def test_shapes_are_read_by_name_even_where_it_holds_an_equals_sign():
    assert shown("n.onnx", "--shape", "a=1,3,4,4", "--shape", "x=y=2,5") == (
        "n.onnx () {'a': (1, 3, 4, 4), 'x=y': (2, 5)}"
    )


@pytest.mark.parametrize("word", ["1,3,4,4", "=1,2", "a=", "a=1,x"])
def test_a_shape_must_have_a_name_and_numbers(word):
    result = CliRunner().invoke(command, ["net.onnx", "--shape", word])
    assert result.exit_code == 2
    assert "input=1,3,640,640" in result.output


def test_several_batches_make_a_list():
    assert one_or_several(()) is None
    assert one_or_several((8,)) == 8
    assert one_or_several((1, 8)) == [1, 8]
