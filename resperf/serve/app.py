"""The service: networks and questions in, the JSON of `resperf predict --json` out.

The body of a question is the ONNX file itself, so that a file that is too large is refused while it
arrives. PredictDDL (Assogba et al. 2023) calls its parts controller, listener and task checker; its
offline trainer is `resperf.serve.trainer`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException as RouterError
from starlette.requests import ClientDisconnect

from resperf._version import __version__
from resperf.devices.cluster import named_clusters
from resperf.devices.collectives import topologies
from resperf.errors import did_you_mean, error_line, printable
from resperf.network.files import shipped_networks
from resperf.predictors import DEFAULT_METHOD
from resperf.report.documents import versioned
from resperf.report.page import PAGE, served_page
from resperf.serve.pool import Pool
from resperf.serve.trainer import Trainer
from resperf.settings import OPTIMIZERS, PRECISIONS

MAX_BYTES = 256 << 20
"""Of a client's file; one without weights has a few."""
MAX_BATCHES, MAX_DEVICES = 32, 64
_RECEIVE_S = 120.0
"""For a file to arrive: longer ones hold a turn of others."""
_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]*$", max_length=100)]
"""A name that is no path: of a device, method or dataset."""
_Name = Annotated[str, StringConstraints(pattern=r"^[^/\\\x00-\x1f]+$", max_length=200)]
_Pair = Annotated[str, StringConstraints(pattern=r"=", max_length=300)]
_Size = Annotated[int, Field(ge=1, lt=10**18)]


class NetworkQuestion(BaseModel):
    """Query parameters: which network, and its shapes."""

    model_config = ConfigDict(extra="forbid")
    network: _Word | None = Field(None, description="A shipped network, instead of a body.")
    name: _Name = Field("network", description="What the answer calls the body.")
    shape: list[_Pair] = Field([], max_length=MAX_BATCHES, description="NAME=N,N,...")

    def words(self) -> list[str]:
        """Return the options as words of the command line; each value stands behind a ``=``."""
        about = {"network", "name"}
        fields = self.model_dump(exclude=about, exclude_defaults=True, by_alias=True)
        return [
            f"--{option}" if value is True else f"--{option}={value}"
            for option, given in fields.items()
            for value in (given if isinstance(given, list) else [given])
        ]


class Question(NetworkQuestion):
    """Query parameters of a prediction: options of `resperf predict`."""

    device: _Word | None = None
    framework: _Word | None = None
    method: _Word | None = None
    precision: Literal[PRECISIONS] | None = None  # type: ignore[valid-type]
    batch: list[_Size] = Field([], max_length=MAX_BATCHES)
    compiled: bool = False
    training: bool = Field(False, serialization_alias="train")
    optimizer: Literal[tuple(OPTIMIZERS)] | None = None  # type: ignore[valid-type]


class ScalingQuestion(Question):
    """Query parameters of scaling: options of `resperf predict --devices`."""

    devices: list[_Size] = Field(min_length=1, max_length=MAX_DEVICES)
    strong: bool = False
    images: _Size | None = None
    epochs: _Size | None = None
    cluster: _Word | None = None


def create_app(max_bytes: int = MAX_BYTES, datasets: Path | None = None) -> FastAPI:
    """Return the service.

    Parameters
    ----------
    max_bytes : int
        Of a client's file.
    datasets : Path, optional
        Folder of the datasets that clients may train on; by default there is no training.
    """
    pool: Pool
    trainer = Trainer(datasets)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal pool
        pool = Pool()
        yield
        await pool.close()

    app = FastAPI(title="resperf", version=__version__, lifespan=lifespan, docs_url=None,
                  redoc_url=None)  # fmt: skip
    for kind in (RouterError, RequestValidationError, OSError):
        app.add_exception_handler(kind, _error)

    async def answer(command: str, request: Request, question: NetworkQuestion) -> Response:
        async with pool.turn():
            with tempfile.NamedTemporaryFile(dir=pool.folder, suffix=".onnx") as file:
                path = Path(file.name) if await _receive(request, file, max_bytes) else None
                network = _network(question, path)
                status, text = await pool.ask([command, network, *question.words(), "--json"])
        if path is not None:
            text = text.replace(path.stem.encode(), json.dumps(question.name)[1:-1].encode())
        return Response(text, status, media_type="application/json")

    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    of_network = {"requestBody": {"content": body, "description": "ONNX; nothing with network=."}}

    @app.post("/v1/predictions", openapi_extra=of_network)
    async def predictions(request: Request, question: Annotated[Question, Query()]) -> Response:
        """Predict a network: the JSON of ``resperf predict --json``."""
        return await answer("predict", request, question)

    @app.post("/v1/scaling", openapi_extra=of_network)
    async def scaling(request: Request, question: Annotated[ScalingQuestion, Query()]) -> Response:
        """Predict over numbers of devices: the JSON of ``resperf predict --devices --json``."""
        return await answer("predict", request, question)

    @app.post("/v1/similar", openapi_extra=of_network)
    async def similar(request: Request, question: Annotated[NetworkQuestion, Query()]) -> Response:
        """Name the known networks that are most like it: the JSON of ``resperf similar --json``."""
        return await answer("similar", request, question)

    @app.get("/v1/devices")
    async def devices() -> Response:
        """List the devices and what answers for them: the JSON of ``resperf devices --json``."""
        async with pool.turn():
            status, text = await pool.ask(["devices", "--json"])
        return Response(text, status, media_type="application/json")

    @app.get("/v1/cluster")
    async def cluster() -> list[dict[str, Any]]:
        """List the clusters that scaling knows, each with its totals over all servers."""
        clusters = named_clusters().values()
        return [versioned(vars(one) | {"totals": one.totals()}) for one in clusters]

    @app.post("/v1/trainings", status_code=202)
    async def train(dataset: _Word, method: _Word = DEFAULT_METHOD) -> dict[str, Any]:
        """Start ``resperf train`` on a dataset of the service's folder, one at a time."""
        return trainer.start(dataset, method)

    @app.get("/v1/trainings/{number}")
    async def training(number: int) -> dict[str, Any]:
        """Say how far a training is; a finished one has the JSON of ``resperf train --json``."""
        return trainer.state(number)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Say that the service runs."""
        return {"status": "ok", "version": __version__}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        clusters = [*named_clusters(), *topologies()]
        return HTMLResponse(served_page([*shipped_networks()], PRECISIONS, clusters))

    app.mount("/page", StaticFiles(directory=PAGE))
    return app


def _network(question: NetworkQuestion, file: Path | None) -> str:
    """Return the network's word of the command line: our name of the file, or a shipped one's."""
    name, shipped = question.network, shipped_networks()
    if (file is None) == (name is None):
        wrong = "two networks are given" if file else "the body is empty"
        raise HTTPException(400, f"{wrong}; send a network as body, or network= of a shipped one")
    if name is not None and name not in shipped:
        hint = f"{did_you_mean(name, shipped)}; known: {', '.join(shipped)}"
        raise HTTPException(404, f"no shipped network {name}{hint}")
    return file.name if file else str(name)


async def _receive(request: Request, file: IO[bytes], max_bytes: int) -> int:
    """Write the body to a file, and return its bytes."""
    most = f"the file is larger than {max_bytes >> 20} MB"
    too_large = HTTPException(413, f"{most}; send it without weights, or use resperf predict")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    size = 0
    try:
        async with asyncio.timeout(_RECEIVE_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                file.write(chunk)
    except (TimeoutError, ClientDisconnect) as error:
        raise HTTPException(400, "the file did not arrive; send it again") from error
    file.flush()
    return size


async def _error(_request: Request, error: Exception) -> Response:
    """Answer an error by its line."""
    status = getattr(error, "status_code", 503)
    if isinstance(error, RequestValidationError):
        first, status = error.errors()[0], 422
        where = ".".join(map(str, first["loc"][1:]))
        line = f"{where}: {first['msg']}"
        if first["type"] == "string_pattern_mismatch":
            line = f"{where}: {printable(first['input'])!r} is no name, or no NAME=VALUE"
    elif isinstance(error, RouterError):
        advice = "" if isinstance(error, HTTPException) else "; /openapi.json lists what there is"
        line = f"{error.detail}{advice}"
    else:
        line = error_line(error)
    return JSONResponse({"error": line}, status)
