"""The page in Chromium: what it shows is the JSON, and it asks nobody else."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
GOLDEN = Path(__file__).parents[1] / "golden" / "dataset.h5"
EVIL = "<img src=x onerror=document.title='evil'></script><script>document.title='evil'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium: make test-page installs it where apt is")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        # As root, as in containers, Chromium starts without its sandbox only.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def page(browser) -> Iterator[Any]:
    """Open a page that fails its test at any error of its console and any request elsewhere."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    refused = "the server responded with a status of 4"
    assert [text for text in said if refused not in text] == []
    origins = {re.match(r"(\w+:)(//[^/]*)?", url)[0] for url in asked}
    assert all(
        re.fullmatch(r"http://127\.0\.0\.1:\d+|file://|blob:.*|data:", url) for url in origins
    )
    opened.close()


def start(page: Any, service: Any) -> None:
    page.goto(f"http://127.0.0.1:{service.port}/")
    page.wait_for_selector("form[data-ready]")


def rows(page: Any, label: str) -> list[list[str]]:
    """Return the cells of a table by its name."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return page.eval_on_selector_all(f"[aria-label='{label}'] tbody tr", script)


def answered(page: Any) -> None:
    page.wait_for_selector(".answer .total", timeout=30_000)
    page.wait_for_selector("#status:text-is('done')")


def taken(page: Any) -> Any:
    """Return the JSON that the page offers."""
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON").last.click()
    return json.loads(Path(download.value.path()).read_text())


def test_an_uploaded_network_is_shown_as_the_json_says(page, service, cli):
    start(page, service)
    page.set_input_files("#file", NETWORKS / "resnet18.onnx")
    page.select_option("[aria-label=Device]", "h100")
    page.click("#go")
    answered(page)
    [document] = cli.json("predict", NETWORKS / "resnet18.onnx", "--device", "h100")
    assert taken(page) == [document]
    total, interval = page.inner_text(".total"), page.inner_text(".interval")
    assert float(total.removesuffix(" ms")) == pytest.approx(document["total_ms"], rel=1e-3)
    low, high = re.search(r"90% interval ([\d.]+) to ([\d.]+) ms", interval).groups()
    assert float(low) == pytest.approx(document["low_ms"], rel=1e-3)
    assert float(high) == pytest.approx(document["high_ms"], rel=1e-3)
    shown = page.inner_text(".legend >> nth=0")
    assert f"{document['origins']['inferred']:.1%} inferred" in shown
    layers = document["layers"]
    cells = rows(page, "Layers")
    assert len(cells) == len(layers)
    by_time = sorted(layers, key=lambda layer: -layer["execution_ms"])
    for row, layer in zip(cells, by_time, strict=True):
        assert float(row[3]) == pytest.approx(layer["execution_ms"], rel=1e-3)
        own = layers[int(row[0]) - 1]
        assert row[1:3] == [own["name"], own["kind"]]
        bounds = [float(bound) for bound in row[5].split(" to ")]
        assert bounds == pytest.approx([own["low_ms"], own["high_ms"]], rel=1e-3)
    # A table sorts by each of its columns, both ways.
    page.locator("th button").get_by_text("layer", exact=True).click()
    names = [row[1] for row in rows(page, "Layers")]
    page.locator("th button").get_by_text("layer", exact=True).click()
    assert [row[1] for row in rows(page, "Layers")] == names[::-1] != [x["name"] for x in layers]
    dots = page.locator("svg[aria-label^=Roofline] circle").count()
    assert dots == sum(layer["macs"] > 0 for layer in layers)
    assert page.locator("svg[aria-label^=Roofline] .roof").count() == 1
    memory = {row[0]: row[3] for row in rows(page, "Memory at the peak")}
    assert memory["peak memory"] == "not known"
    assert page.inner_text("code") == "resperf predict resnet18.onnx --device h100"


def test_several_devices_and_batches_stand_side_by_side(page, service, cli):
    start(page, service)
    page.select_option("#network", "lenet5")
    page.click("#more")
    for box, device in zip(page.locator("#devices select").all(), ("h100", "cpu"), strict=True):
        box.select_option(device)
    page.fill("#batch", "1 8")
    page.click("#go")
    answered(page)
    expected = [
        document
        for device in ("h100", "cpu")
        for document in cli.json("predict", "lenet5", "--device", device, "--batch", "1", "8")
    ]
    assert taken(page) == expected
    compared = rows(page, "Comparison")
    assert [row[1:3] for row in compared] == [
        ["h100", "1"],
        ["h100", "8"],
        ["cpu", "1"],
        ["cpu", "8"],
    ]
    for row, document in zip(compared, expected, strict=True):
        assert float(row[3]) == pytest.approx(document["total_ms"], rel=1e-3)
        assert " to " in row[5]
    # CPUs have no data sheet here: the page says that no roof is known.
    assert "peak is not known: no roof" in page.locator(".answer").nth(2).text_content()


def test_the_keyboard_alone_is_enough(page, service):
    start(page, service)
    page.focus("#network")
    page.keyboard.type("lenet5")
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "go":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    answered(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "kind":
            break
    page.keyboard.press("Enter")
    kinds = [row[2] for row in rows(page, "Layers")]
    assert kinds == sorted(kinds)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_follows_the_systems_colours(page, service, scheme):
    page.set_viewport_size({"width": 375, "height": 700})
    page.emulate_media(color_scheme=scheme)
    start(page, service)
    page.select_option("#network", "lenet5")
    page.click("#go")
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
    assert (brightness > 200) == (scheme == "light")


def test_the_printed_address_has_the_token(page, serving):
    with serving("a secret: 100%") as client:
        page.goto(f"http://127.0.0.1:{client.port}/#{quote('a secret: 100%')}")
        page.wait_for_selector("form[data-ready]", timeout=30_000)


def test_refusals_are_shown_as_their_line(page, service):
    start(page, service)
    page.click("#go")
    assert "drop an ONNX file" in page.inner_text("[role=alert]")
    page.set_input_files("#file", {"name": "no.onnx", "mimeType": "", "buffer": b"no network"})
    page.click("#go")
    page.wait_for_selector("#status:text-is('done')")
    assert "is not an ONNX file" in page.inner_text("[role=alert]")


def test_several_devices_have_a_curve_with_its_band(page, service, cli):
    start(page, service)
    page.select_option("#network", "resnet18")
    page.select_option("[aria-label=Device]", "rtx4090")
    page.fill("#batch", "8 32")
    page.fill("#counts", "1")
    page.click("#go")
    answered(page)
    words = ("--device", "rtx4090", "--method", "convmeter", "--batch", "8", "32")
    document = cli.json("predict", "resnet18", *words, "--devices", "1")
    assert taken(page) == document
    points = [point for series in document["series"] for point in series["points"]]
    for row, point in zip(rows(page, "Several devices"), points, strict=True):
        assert float(row[2]) == pytest.approx(point["time_ms"], rel=1e-3)
        assert " to " in row[3]
    curve = page.locator("svg[aria-label^=Throughput]")
    assert (curve.locator(".band").count(), curve.locator("circle").count()) == (2, 2)


def test_a_cluster_is_chosen_for_training_steps(page, service, cli):
    start(page, service)
    page.select_option("#network", "resnet18")
    page.select_option("[aria-label=Device]", "t4")
    page.check("#training")
    page.fill("#batch", "32")
    page.fill("#counts", "1 4 16")
    page.select_option("#cluster", "t4-g4dn")
    page.click("summary:text-is('More')")
    page.fill("#images", "1281167")
    page.click("#go")
    answered(page)
    words = ("--device", "t4", "--batch", "32", "--train", "--cluster", "t4-g4dn", "--images",
             "1281167", "--devices", "1", "4", "16")  # fmt: skip
    document = cli.json("predict", "resnet18", *words)
    section = page.locator("section.answer").filter(has_text="Several devices")
    command = section.locator("code").inner_text().split()
    assert command[:3] == ["resperf", "predict", "resnet18"]
    assert {"--train", "t4-g4dn", "1281167"} <= {*command}
    points = document["series"][0]["points"]
    for row, point in zip(rows(page, "Several devices"), points, strict=True):
        assert float(row[4]) == pytest.approx(point["samples_per_s"], rel=1e-3)
        epoch, low, high = map(float, re.findall(r"[\d.]+", row[6]))
        assert epoch == pytest.approx(point["epoch_s"], rel=1e-3)
        assert (low, high) == pytest.approx((point["low_epoch_s"], point["high_epoch_s"]), rel=1e-3)
    assert page.locator("svg[aria-label^=Throughput] .band").count() == 1


def test_similar_networks_are_shown_with_their_measured_times(page, service, cli):
    start(page, service)
    page.set_input_files("#file", NETWORKS / "resnet50.onnx")
    page.click("#go")
    answered(page)
    similar = cli.json("similar", NETWORKS / "resnet50.onnx")["similar"]
    shown = rows(page, "Similar known networks")
    assert [row[:2] for row in shown] == [[x["network"], f"{x['cosine']:.3f}"] for x in similar]
    run = similar[0]["runs"][0]
    assert f"{run['device']} {run['framework']} {run['precision']}" in shown[0][2]


def test_a_page_of_its_own_shows_the_same(page, cli, tmp_path):
    file = tmp_path / "answer.html"
    words = ("predict", "resnet18", "--device", "rtx4090", "--precision", "amp", "--batch", "8")
    cli.text(*words, "-o", file)
    document = cli.document(*words)
    page.goto(file.as_uri())
    assert taken(page) == [document]
    assert page.inner_text("code") == f"resperf {' '.join(words)} -o {file}"
    assert not page.is_visible("form")
    groups = {row[0]: float(row[1]) for row in rows(page, "Groups of operators")}
    assert groups == pytest.approx({x["name"]: x["ms"] for x in document["groups"]}, rel=1e-3)


def test_names_of_files_are_text(page, cli, perceptron, tmp_path):
    import onnx

    model = onnx.load(perceptron("a.onnx", 64, 10))
    model.graph.node[0].name = EVIL
    onnx.save(model, tmp_path / "a.onnx")
    cli.text("predict", tmp_path / "a.onnx", "--batch", "1", "--device", "h100",
             "-o", tmp_path / "a.html")  # fmt: skip
    page.goto((tmp_path / "a.html").as_uri())
    assert page.locator(".total").count() == 1
    assert page.title() == "resperf"
    assert page.locator("img").count() == 0


def test_other_commands_write_pages_too(page, cli, tmp_path):
    file = tmp_path / "page.html"
    cli.text("compare", "lenet5", "resnet18", "--device", "h100", "-o", file)
    page.goto(file.as_uri())
    first, second = cli.json("compare", "lenet5", "resnet18", "--device", "h100")
    kinds = {row[0] for row in rows(page, "Side by side")}
    assert kinds == {kind["kind"] for kind in [*first["kinds"], *second["kinds"]]}
    cli.text("measure", "lenet5", "--seconds", "0.3", "--no-layers", "-o", file)
    page.goto(file.as_uri())
    [measured] = taken(page)
    total_ms = float(page.inner_text(".total").removesuffix(" ms"))
    assert total_ms == pytest.approx(measured["total_ms"], rel=1e-3)
    assert "p95" in page.inner_text(".interval")
    cli.text("dataset", "info", GOLDEN, "-o", file)
    page.goto(file.as_uri())
    summary = cli.json("dataset", "info", GOLDEN)
    edges = summary["progress"].pop("edges")
    assert (edges[0], edges[-1]) == (summary["first_started_at"], summary["last_started_at"])
    counted = {name: sum(parts) for name, parts in summary["progress"].items()}
    titles = page.eval_on_selector_all("svg rect title", "all => all.map(x => x.textContent)")
    for name, count in counted.items():
        own = [int(title.split()[-2]) for title in titles if title.split()[-1] == name]
        assert sum(own) == count
    assert sum(counted.values()) == summary["rows"]


def test_an_evaluation_has_its_plot_and_tables(page, cli, toy_dataset, tmp_path):
    file = tmp_path / "page.html"
    cli.text("train", toy_dataset, "--method", "baseline", "-o", tmp_path / "toy")
    words = ("evaluate", toy_dataset, "--bundle", tmp_path / "toy")
    cli.text(*words, "-o", file)
    page.goto(file.as_uri())
    documents = cli.json(*words)
    assert taken(page) == documents
    assert len(rows(page, "Evaluation")) == len(documents)
