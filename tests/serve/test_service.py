"""The service over real sockets: its answers are the command line's, its refusals one line."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("fastapi", reason="pip install 'resperf[serve]'")

from resperf.devices.cluster import named_clusters
from resperf.serve import pool, worker

ROOT = Path(__file__).parents[2]
LENET = ROOT / "models" / "networks" / "lenet5.onnx"
MAX_BYTES = 8 << 20
HOSTILE = int(os.environ.get("RESPERF_HOSTILE", "200"))
CLIENTS = int(os.environ.get("RESPERF_CLIENTS", "8"))
"""A run by hand takes more: RESPERF_HOSTILE=2000 RESPERF_CLIENTS=50."""


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("device=cpu", ["--device", "cpu"]),
        ("device=cpu&batch=1&batch=8", ["--device", "cpu", "--batch", "1", "8"]),
        ("device=h100&training=true&optimizer=adam&batch=4",
         ["--device", "h100", "--train", "--optimizer", "adam", "--batch", "4"]),
        ("device=rtx4090&precision=amp&compiled=false",
         ["--device", "rtx4090", "--precision", "amp"]),
    ],
)  # fmt: skip
def test_answers_are_those_of_the_command_line(service, cli, query, words):
    answer = service.predict(f"{query}&name=lenet5", LENET.read_bytes())
    assert answer.status == 200, answer.text
    expected = cli.text("predict", LENET, *words, "--json")
    assert answer.text == expected
    assert service.predict(f"{query}&network=lenet5").text == expected


def test_scaling_and_devices_are_those_of_the_command_line(service, cli):
    words = ("--device", "rtx4090", "--method", "convmeter", "--batch", "8", "--devices", "1")
    query = "network=resnet18&device=rtx4090&method=convmeter&batch=8&devices=1"
    answer = service.ask("POST", f"/v1/scaling?{query}")
    assert answer.text == cli.text("predict", "resnet18", *words, "--json")
    many = service.ask("POST", f"/v1/scaling?{query}{'&devices=1' * 64}")
    assert (many.status, "64 items" in many.error) == (422, True)
    words = ("--device", "t4", "--train", "--batch", "32", "--devices", "1", "4", "--cluster",
             "t4-g4dn", "--images", "1281167", "--epochs", "90")  # fmt: skip
    query = "network=resnet18&device=t4&training=true&batch=32&devices=1&devices=4&images=1281167"
    answer = service.ask("POST", f"/v1/scaling?{query}&epochs=90&cluster=t4-g4dn")
    assert answer.text == cli.text("predict", "resnet18", *words, "--json")
    unknown = service.ask("POST", f"/v1/scaling?{query}&cluster=t4-g4dm")
    assert (unknown.status, "did you mean t4-g4dn" in unknown.error) == (422, True)
    path = service.ask("POST", f"/v1/scaling?{query}&cluster=..%2Fsecret.toml")
    assert (path.status, "is no name" in path.error) == (422, True)
    assert service.ask("GET", "/v1/devices").text == cli.text("devices", "--json")


def test_similar_networks_are_those_of_the_command_line(service, cli):
    expected = cli.text("similar", LENET, "--json")
    assert service.ask("POST", "/v1/similar?name=lenet5", LENET.read_bytes()).text == expected
    assert service.ask("POST", "/v1/similar?network=lenet5").text == expected
    assert service.ask("POST", "/v1/similar", b"no network").status == 400
    refused = service.ask("POST", "/v1/similar?network=lenet5&device=cpu")
    assert (refused.status, "device" in refused.error) == (422, True)


def test_clusters_are_listed_with_what_they_have(service):
    clusters = service.ask("GET", "/v1/cluster").document
    assert [cluster["name"] for cluster in clusters] == [*named_clusters()]
    for document, cluster in zip(clusters, named_clusters().values(), strict=True):
        assert document["totals"]["devices"]["sum"] == cluster.devices
        assert len(document["nodes"]) == len(cluster.nodes)


def test_a_dataset_of_the_service_is_trained_on_one_at_a_time(
    service, serving, toy_dataset, tmp_path
):
    off = service.ask("POST", "/v1/trainings?dataset=a.h5")
    assert (off.status, "--allow-training" in off.error) == (404, True)
    shutil.copy(toy_dataset, tmp_path / "a.h5")
    (tmp_path / "b.h5").write_bytes(b"no dataset")
    with serving(datasets=tmp_path) as client:
        for dataset, status, words in (
            ("c.h5", 404, "the service has a.h5, b.h5"),
            ("..%2Fa.h5", 422, "is no name"),
        ):
            refused = client.ask("POST", f"/v1/trainings?dataset={dataset}")
            assert (refused.status, words in refused.error) == (status, True)
        assert client.ask("GET", "/v1/trainings/1").status == 404
        started = client.ask("POST", "/v1/trainings?dataset=a.h5&method=baseline")
        assert started.status == 202
        assert started.document["state"] == "running"
        second = client.ask("POST", "/v1/trainings?dataset=a.h5")
        assert (second.status, "training 1 runs" in second.error) == (429, True)
        done = _ended(client, 1)
        assert (done["state"], done["bundle"]["method"]) == ("done", "baseline")
        assert Path(done["bundle"]["path"]).is_dir()
        # The processes that answer find the new bundle.
        rows = client.ask("GET", "/v1/devices").document
        assert done["bundle"]["path"] in {(row["bundle"] or {}).get("path") for row in rows}
        assert client.ask("POST", "/v1/trainings?dataset=b.h5").document["id"] == 2
        failed = _ended(client, 2)
        assert (failed["state"], "b.h5" in failed["error"]) == ("failed", True)
        assert _ended(client, 1) == done


def _ended(client, number):
    for _ in range(600):
        state = client.ask("GET", f"/v1/trainings/{number}").document
        if state["state"] != "running":
            return state
        time.sleep(0.1)
    raise AssertionError(state)


def test_it_says_that_it_runs_and_what_it_takes(service):
    health = service.ask("GET", "/healthz")
    assert (health.status, health.document["status"]) == (200, "ok")
    paths = service.ask("GET", "/openapi.json").document["paths"]
    assert {*paths} == {
        "/v1/predictions", "/v1/scaling", "/v1/similar", "/v1/devices", "/v1/cluster",
        "/v1/trainings", "/v1/trainings/{number}", "/healthz",
    }  # fmt: skip
    names = {field["name"] for field in paths["/v1/predictions"]["post"]["parameters"]}
    assert {"network", "device", "precision", "batch", "training"} <= names
    # FastAPI's own page loads scripts from elsewhere.
    assert service.ask("GET", "/docs").status == 404


BAD = [
    ("device=cpu", b"", 400, "the body is empty"),
    ("device=cpu", b"hello, I am no network", 400, "is not an ONNX file"),
    ("device=cpu", b"\x80\x04cbuiltins\nexec\n", 400, "is a PyTorch file"),
    ("device=cpu", b"PK\x03\x04" + bytes(100), 400, "is a PyTorch file"),
    ("device=h10", LENET, 404, "did you mean h100"),
    ("device=..%2F..%2Fetc", LENET, 422, "is no name"),
    ("device=%2Fetc%2Fpasswd", LENET, 422, "is no name"),
    ("device=card.toml", LENET, 422, "card.toml"),
    ("network=..%2F..%2Fetc%2Fpasswd", b"", 422, "is no name"),
    ("network=lenet6", b"", 404, "did you mean lenet5"),
    ("network=lenet5", LENET, 400, "two networks are given"),
    ("device=cpu&name=..%2F..%2Fevil", LENET, 422, "is no name"),
    ("device=cpu&name=two%0Alines", LENET, 422, "is no name"),
    ("device=cpu" + "&batch=1" * 33, LENET, 422, "at most 32 items"),
    ("batch=0", LENET, 422, "batch.0"),
    ("batch=x", LENET, 422, "batch.0"),
    ("precision=fp7", LENET, 422, "precision"),
    ("shape=input", LENET, 422, "no NAME=VALUE"),
    ("shape=input=x", LENET, 422, "must look like"),
    ("optimizer=adam", LENET, 422, "--optimizer goes with --train"),
    ("bundle=%2Fetc", LENET, 422, "bundle"),
    ("device=cpu&precision=bf16", LENET, 422, "bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "body", "status", "words"), BAD)
def test_bad_questions_are_one_line(service, query, body, status, words):
    answer = service.predict(query, body.read_bytes() if isinstance(body, Path) else body)
    assert answer.status == status, answer.text
    assert words in answer.error


def test_a_refusal_is_the_line_of_the_command(service, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("network.onnx").write_bytes(b"hello, I am no network")
    line = cli.error("predict", "network.onnx", "--device", "cpu")
    refused = service.predict("device=cpu", b"hello, I am no network")
    assert line == f"resperf: error: {refused.error}\n"


def test_names_are_shown(service):
    for name in ('net "é" 1', "again"):
        query = urlencode({"device": "cpu", "name": name})
        document = service.predict(query, LENET.read_bytes()).document[0]
        assert document["network"] == name
        assert document["summary"].startswith(f"{name}, batch 1, on cpu")
        assert f"{name}.onnx" in service.predict(query, b"no network").error


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 400),
        ({"Host": "evil.example:80"}, 400),
        ({"Host": "127.0.0.1.evil.example"}, 400),
        ({"Host": "10.0.0.7"}, 400),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:9"}, 200),
        ({"Origin": "http://evil.example"}, 400),
        ({"Origin": "null"}, 400),
    ],
)
def test_pages_of_elsewhere_may_not_ask(service, headers, status):
    assert service.ask("GET", "/healthz", **headers).status == status
    answer = service.predict("device=cpu", LENET.read_bytes(), **headers)
    assert answer.status == status
    if status != 200:
        assert answer.error


def test_no_answer_lets_another_page_read_it(service):
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    for path in ("/", "/healthz", "/nothing", "/page/page.js"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        names = {name.casefold() for name, _ in response.getheaders()}
        assert not any(name.startswith("access-control") for name in names)
        policy = response.getheader("content-security-policy")
        assert "default-src 'none'" in policy
        assert "http" not in policy
    connection.close()


def _chunk(size: int) -> bytes:
    return b"%x\r\n" % size + bytes(size) + b"\r\n"


@pytest.mark.parametrize("with_length", [True, False])
def test_a_file_that_is_too_large_is_refused_while_it_arrives(service, with_length):
    """Nine megabytes of a gigabyte are sent; the answer comes before the rest."""
    how = f"Content-Length: {1 << 30}" if with_length else "Transfer-Encoding: chunked"
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as client:
        client.sendall(
            f"POST /v1/predictions?device=cpu HTTP/1.1\r\nHost: localhost\r\n{how}\r\n\r\n".encode()
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(9 * (not with_length)):
                client.sendall(_chunk(1 << 20))
        head = ""
        while "}" not in head:
            head += client.recv(4096).decode()
    assert head.startswith("HTTP/1.1 413 ")
    assert "larger than 8 MB" in head
    assert service.predict("device=cpu", LENET.read_bytes()).status == 200


def test_a_client_that_goes_away_takes_nothing_with_it(service):
    with socket.create_connection(("127.0.0.1", service.port)) as client:
        client.sendall(b"POST /v1/predictions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Length: 1000\r\n\r\nhalf")  # fmt: skip
    for _ in range(pool.PROCESSES + pool.WAITING):
        assert service.predict("device=cpu&network=lenet5").status == 200


def test_more_questions_than_may_wait_are_told_to_come_again(service):
    head = b"POST /v1/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    turns = pool.PROCESSES + pool.WAITING
    with contextlib.ExitStack() as stack:
        for _ in range(turns):
            client = socket.create_connection(("127.0.0.1", service.port))
            stack.enter_context(client)
            client.sendall(head)
        for _ in range(100):
            refused = service.predict("device=cpu", LENET.read_bytes())
            if refused.status == 429:
                break
            time.sleep(0.05)
        assert (refused.status, "ask again" in refused.error) == (429, True)
    for _ in range(100):
        if service.predict("device=cpu", LENET.read_bytes()).status == 200:
            break
        time.sleep(0.05)
    assert service.predict("device=cpu", LENET.read_bytes()).status == 200


def test_processes_have_limits_and_are_replaced(service, processes, monkeypatch):
    assert service.predict("device=cpu&network=lenet5").status == 200
    before = processes()
    assert len(before) == pool.PROCESSES
    for process in before:
        limits = Path(f"/proc/{process}/limits").read_text()
        assert re.search(rf"Max address space +{2 << 30} +{2 << 30} ", limits)
        assert re.search(r"Max core file size +0 +0 ", limits)
    asked = [Path(f"/proc/{p}/limits").read_text() for p in before]
    assert any(re.search(r"Max cpu time +2\d ", limits) for limits in asked)
    for process in before:
        os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    assert service.predict("device=cpu&network=lenet5").status == 200
    assert not {*before} & {*processes()}
    # One that takes too long is given up and killed.
    monkeypatch.setattr(pool, "SECONDS", 0.001)
    answer = service.predict("device=all&network=resnet50")
    assert (answer.status, "given up: it needed" in answer.error) == (422, True)
    monkeypatch.undo()
    assert service.predict("device=cpu&network=lenet5").status == 200


def test_where_no_process_starts_it_says_so_and_goes_on_later(service, processes, monkeypatch):
    monkeypatch.setattr(pool, "RUN", "resperf.no_such_module")
    for process in processes():
        os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    refused = service.predict("device=cpu&network=lenet5")
    assert (refused.status, "no process is free" in refused.error) == (503, True)
    monkeypatch.undo()
    answers = [service.predict("device=cpu&network=lenet5").status for _ in range(4)]
    assert answers[-1] == 200
    assert {*answers} <= {200, 503}


def test_a_process_that_needs_too_much_memory_says_so():
    script = (
        "from resperf.serve import worker\n"
        "worker.limit_memory()\n"
        "import resperf.cli.predict as predict\n"
        "predict._predicted = lambda *words: bytes(3 << 30)\n"
        "print(*worker.ask(['predict', 'lenet5', '--device=cpu']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    line = "not enough memory; use a smaller batch or close other programs"
    assert done.stdout == f"422 {json.dumps({'error': line})}\n"


def test_a_token_is_needed_where_one_was_given(serving):
    with serving("secret", "0.0.0.0") as client:
        assert client.ask("GET", "/healthz").status == 200
        assert client.ask("GET", "/healthz", Host="10.0.0.7:80").status == 200
        # Other names are not known here; what they would ask needs the token.
        assert client.ask("GET", "/healthz", Host="gpu-box:80").status == 200
        assert client.predict("network=lenet5", Host="evil.example").status == 401
        refused = client.predict("device=cpu&network=lenet5")
        assert (refused.status, "token" in refused.error) == (401, True)
        assert client.predict("network=lenet5", Authorization="Bearer wrong").status == 401
        assert client.predict("network=lenet5", Authorization="Bearer secret").status == 200


def test_onnx_runtime_gets_a_graph_of_our_own(tmp_path, monkeypatch):
    """Nothing but structure of the client's file: no weights, file names, domains or documents."""
    import onnxruntime

    values = np.full((64, 64), 1234.5678, np.float32)
    outside = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[64, 64])
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="../secret.bin")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], doc_string="a secret document"),
        helper.make_node("MatMul", ["h", "v"], ["i"]),
        helper.make_node("Evil", ["i"], ["j"], domain="evil.example", payload=b"secret payload"),
        helper.make_node("Relu", ["j"], ["y"]),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64]) for name in "xy"]
    middle = [helper.make_tensor_value_info("j", TensorProto.FLOAT, [8, 64])]
    weights = [numpy_helper.from_array(values, "w"), outside]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights, value_info=middle)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("evil.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model.metadata_props.add(key="k", value="secret metadata")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(values.tobytes())
    Path("upload.onnx").write_bytes(model.SerializeToString())
    given: list[object] = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, model, options=None, *rest, **more):
            given.append(model)
            super().__init__(model, options, *rest, **more)

    libraries: list[str] = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime.SessionOptions, "register_custom_ops_library", libraries.append)
    status, text = worker.ask(["predict", "upload.onnx", "--device=cpu", "--json"])
    assert status == 200, text
    assert [entry["op"] for entry in json.loads(text)[0]["skipped"]] == ["evil.example.Evil"]
    assert given
    asked = [each for each in given if isinstance(each, bytes)]
    graphs = [onnx.load_from_string(content) for content in asked]
    matrices = [node for graph in graphs for node in graph.graph.node if node.op_type == "MatMul"]
    assert matrices, "ONNX Runtime was not asked about this network"
    for content in asked:
        assert values[0, :4].tobytes() not in content
        assert b"secret" not in content
    # Those that are named are predictors of bundles.
    assert not [each for each in given if not isinstance(each, bytes) and "upload" in str(each)]
    assert not libraries


def _broken_file():
    path = ROOT / "tools" / "fuzz_networks.py"
    spec = importlib.util.spec_from_file_location("fuzz_networks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_networks"] = module
    spec.loader.exec_module(module)
    return module.broken_file


def test_hostile_files_are_answered_in_time_and_never_by_a_defect(service, tmp_path):
    """Several clients at once; none gets a 5xx but 503, and the service answers afterwards."""
    broken_file, lock, answers = _broken_file(), threading.Lock(), []

    def send(seed: int) -> None:
        folder = tmp_path / str(seed)
        folder.mkdir()
        with lock:
            done, path = broken_file(seed, folder)
            body = path.read_bytes()
        while True:
            started = time.monotonic()
            answer = service.predict(("device=cpu", "device=h100")[seed % 2], body)
            answers.append((answer.status, time.monotonic() - started, done, answer.text))
            if answer.status != 429:
                return
            time.sleep(0.2)

    with ThreadPoolExecutor(CLIENTS) as clients:
        for sent in [clients.submit(send, seed) for seed in range(HOSTILE)]:
            sent.result()
    assert sum(answer[0] != 429 for answer in answers) == HOSTILE
    wrong = [
        (status, seconds, done, text[:300])
        for status, seconds, done, text in answers
        if status not in (200, 400, 404, 413, 422, 429, 503)
        or seconds > worker.SECONDS
        or "resperf failed" in text
        or (status != 200 and [*json.loads(text)] != ["error"])
    ]
    assert wrong == []
    statuses = Counter(answer[0] for answer in answers)
    slowest_s = max(answer[1] for answer in answers)
    sys.stderr.write(f"{dict(statuses)}, slowest {slowest_s:.1f} s\n")
    assert service.predict("device=cpu&network=lenet5").status == 200


def test_the_command_serves_until_it_is_stopped(tmp_path):
    words = [sys.executable, "-m", "resperf", "serve", "--port", "0"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = started.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ ", line)[1])
        for _ in range(200):
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("POST", "/v1/predictions?network=lenet5&device=cpu")
                break
            time.sleep(0.05)
        assert connection.getresponse().status == 200
        again = [*words[:-1], str(port)]
        busy = subprocess.run(again, capture_output=True, text=True, timeout=60)
        assert busy.returncode == 2
        assert "choose another --port" in busy.stderr
        assert busy.stderr.count("\n") == 1
    finally:
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=30)
    assert started.returncode == 130, said
    assert said == "resperf: interrupted\n"


def test_other_machines_need_a_token(cli):
    assert "add --token" in cli.error("serve", "--host", "0.0.0.0")


def test_a_missing_extra_is_one_line(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'resperf[serve]'" in cli.error("serve")
