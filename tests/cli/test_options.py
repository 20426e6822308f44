"""Options that several commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from resperf.backends import backend
from resperf.cli._options import (
    BATCH,
    NETWORK,
    SHAPE,
    run_options,
    run_settings,
)
from resperf.cli._sections import Command
from resperf.cli.bench import default_output
from resperf.errors import ResperfError
from resperf.targets import device_number, target


@click.command(cls=Command)
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


@pytest.mark.parametrize("word", ["0", "x", "1.5", "1,0", "-3", "9" * 400, "9" * 5000])
def test_a_batch_must_be_a_positive_number(word):
    result = CliRunner().invoke(command, ["net.onnx", "--batch", word])
    assert result.exit_code == 2


def test_shapes_are_read_by_name_even_where_it_holds_an_equals_sign():
    assert shown("n.onnx", "--shape", "a=1,3,4,4", "--shape", "x=y=2,5") == (
        "n.onnx () {'a': (1, 3, 4, 4), 'x=y': (2, 5)}"
    )


@pytest.mark.parametrize("word", ["1,3,4,4", "=1,2", "a=", "a=1,x", f"a={'9' * 5000}"])
def test_a_shape_must_have_a_name_and_numbers(word):
    result = CliRunner().invoke(command, ["net.onnx", "--shape", word])
    assert result.exit_code == 2
    assert "input=1,3,640,640" in result.output


@pytest.fixture
def keywords():
    """Return the backend's keywords that words of the command line become."""
    found = {}

    @click.command()
    @run_options
    @click.option("--device")
    def command(device, **how):
        found.update(run_settings(device, **how))

    def read(*words):
        found.clear()
        result = CliRunner().invoke(command, words)
        assert result.exit_code == 0, result.output
        return dict(found)

    return read


def test_only_what_was_given_becomes_a_keyword_of_the_backend(keywords):
    assert keywords() == keywords("--device", "cuda") == keywords("--device", "h100") == {}
    words = ["--threads", "2", "--precision", "amp", "--training", "sgd", "--device", "CUDA:1"]
    assert keywords(*words) == {
        "threads": 2, "precision": "amp", "optimizer": "sgd", "device": "cuda:1",
    }  # fmt: skip


def test_the_dataset_of_a_campaign_is_named_after_how_it_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cuda = target("torch", "cuda")
    assert str(default_output("quick", cuda, {})) == "quick-cuda-torch.h5"
    settings = {"threads": 2, "precision": "amp", "layout": "nhwc", "device": "cuda:1"}
    name = str(default_output("quick", cuda, settings))
    assert name == "quick-cuda1-torch-2threads-amp-nhwc.h5"
    shared = {"optimizer": "sgd", "processes": 2}
    name = str(default_output("steps", target("torch", "cpu"), shared))
    assert name == "steps-cpu-torch-sgd-2processes.h5"
    assert [device_number(word) for word in ("cpu", "cuda", "cuda:0", "cuda:12")] == [0, 0, 0, 12]
    for word in ("cuda:x", "cuda:", "cuda:-1"):
        with pytest.raises(ResperfError, match=f"'{word}' must be written like cuda:1"):
            device_number(word)


def test_a_setting_that_a_framework_lacks_is_named():
    with pytest.raises(
        ResperfError, match=r"synthetic has no setting 'layout', 'optimizer'; it has: "
    ):
        backend("synthetic", "synthetic", threads=1, layout="nhwc", optimizer="sgd")
