"""What `predict` prints of a shipped network is one screen, on every device."""

from __future__ import annotations

import pytest

import resperf
from resperf.report.network import network_text
from resperf.settings import PRECISIONS

MOST_LINES = 25


def answered() -> list[resperf.Prediction]:
    """Predict ResNet-50 on every known device in each framework and precision that it has."""
    predictions = []
    for device in resperf.list_devices():
        for framework in device.frameworks:
            for precision in PRECISIONS:
                try:
                    predictions.append(
                        resperf.predict(
                            "resnet50", device=device.name, framework=framework, precision=precision
                        )
                    )
                except resperf.UnsupportedError:
                    continue
    return predictions


def test_resnet50_is_one_screen_on_every_device() -> None:
    predictions = answered()
    # Some devices answer in several frameworks, most in several precisions.
    assert len(predictions) > 2 * len(resperf.list_devices())
    for prediction in predictions:
        lines = network_text(prediction).splitlines()
        assert len(lines) <= MOST_LINES, lines[0]
        assert lines[0] == str(prediction)
        assert "90% interval" in lines[0]
        assert " samples/s" in lines[0] or lines[0].endswith(", incomplete")
        said = [line for line in lines if line.startswith(("warning: ", "note: "))]
        assert len(said) == len({*prediction.remarks.warnings, *prediction.remarks.notes})
        assert sum("--host-dispatch-us" in line for line in lines) <= 1


@pytest.mark.parametrize("device", ["cpu", "h100", "rtx4090", "v100"])
def test_kinds_add_up_to_the_first_line(device: str) -> None:
    precision = "amp" if device == "rtx4090" else None
    prediction = resperf.predict("resnet50", device=device, precision=precision, batch=4)
    assert sum(kind.ms for kind in prediction.by_kind()) == pytest.approx(prediction.total_ms)
