"""The service: networks and questions in, the JSON of `resperf predict --json` out.

The body of a question is the ONNX file itself, so that a file that is too large is refused while it
arrives. PredictDDL (Bappi et al. 2024) calls its parts controller, listener and task checker.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from resperf._version import __version__
from resperf.errors import did_you_mean, error_line, printable
from resperf.network.files import shipped_networks
from resperf.report.page import MEDIA_TYPES, page_file, served_page
from resperf.serve.pool import Pool, RefusedError
from resperf.serve.worker import UPLOAD
from resperf.settings import OPTIMIZERS, PRECISIONS

MAX_BYTES = 256 << 20
"""Of a client's file; one without weights has a few."""
MAX_BATCHES, MAX_DEVICES = 32, 64
_RECEIVE_S = 120.0
"""For a file to arrive: longer ones hold a turn of others."""
_ONE_NETWORK = "the network as the body, or network=NAME of a shipped one"
_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]*$", max_length=100)]
"""A name that is no path: of a device, bundle or method."""
_Pair = Annotated[str, StringConstraints(pattern=r"=", max_length=300)]
_Size = Annotated[int, Field(ge=1, lt=10**18)]


class Question(BaseModel):
    """Query parameters of a prediction: options of `resperf predict`, and the network's name."""

    model_config = ConfigDict(extra="forbid")
    network: _Word | None = Field(None, description="A shipped network, instead of a body.")
    name: str = Field("", max_length=200, description="What the answer calls the network.")
    device: _Word | None = None
    framework: _Word | None = None
    method: _Word | None = None
    precision: Literal[PRECISIONS] | None = None  # type: ignore[valid-type]
    batch: list[_Size] = Field([], max_length=MAX_BATCHES)
    shape: list[_Pair] = Field([], max_length=MAX_BATCHES, description="NAME=N,N,...")
    value: list[_Pair] = Field([], max_length=MAX_BATCHES, description="NAME=V,V,...")
    assume: list[_Pair] = Field([], max_length=MAX_BATCHES, description="WHAT=N")
    compiled: bool = False
    training: bool = False
    optimizer: Literal[tuple(OPTIMIZERS)] | None = None  # type: ignore[valid-type]

    def words(self) -> list[str]:
        """Return the options as words of the command line; each value stands behind a ``=``."""
        words = []
        for field, value in self.model_dump(exclude={"network", "name"}, exclude_none=True).items():
            option = f"--{_OPTIONS.get(field, field)}"
            if isinstance(value, bool):
                words += [option] * value
            else:
                words += [f"{option}={x}" for x in (value if isinstance(value, list) else [value])]
        return words


class ScalingQuestion(Question):
    """Query parameters of scaling."""

    devices: list[_Size] = Field(min_length=1, max_length=MAX_DEVICES)
    strong: bool = False
    images: _Size | None = None
    epochs: _Size | None = None
    cluster: _Word | None = None


_OPTIONS = {"training": "train"}
"""Query parameter -> option, where their names differ."""
_ONNX_BODY: Mapping[str, Any] = {
    "requestBody": {
        "description": f"An ONNX file of {MAX_BYTES >> 20} MB at most; or nothing, with network=.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def create_app(max_bytes: int = MAX_BYTES) -> FastAPI:
    """Return the service.

    Parameters
    ----------
    max_bytes : int
        Of a client's file.
    """
    folder = Path()
    pool: Pool

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal folder, pool
        with tempfile.TemporaryDirectory(prefix="resperf-serve-") as name:
            folder = Path(name)
            pool = Pool(folder)
            pool.start()
            try:
                yield
            finally:
                await pool.close()

    app = FastAPI(
        title="resperf", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        summary="Predicts how long a network takes on a device.",
    )  # fmt: skip
    for kind in (RefusedError, HTTPException, RequestValidationError, OSError):
        app.add_exception_handler(kind, _error)

    async def answer(request: Request, question: Question) -> Response:
        async with pool.turn():
            file = await _received(request, folder, max_bytes)
            try:
                path = _network(question, file)
                words = ["predict", path, *question.words(), "--json"]
                name = printable(question.name) if file else ""
                status, body = await pool.ask(words, name, file)
            finally:
                if file is not None:
                    file.unlink(missing_ok=True)
        return Response(body, status, media_type="application/json")

    @app.post("/v1/predictions", openapi_extra=dict(_ONNX_BODY))
    async def predictions(request: Request, question: Annotated[Question, Query()]) -> Response:
        """Predict a network: the JSON of ``resperf predict --json``."""
        return await answer(request, question)

    @app.post("/v1/scaling", openapi_extra=dict(_ONNX_BODY))
    async def scaling(request: Request, question: Annotated[ScalingQuestion, Query()]) -> Response:
        """Predict over numbers of devices: the JSON of ``resperf predict --devices --json``."""
        return await answer(request, question)

    @app.get("/v1/devices")
    async def devices() -> Response:
        """List the devices and what answers for them: the JSON of ``resperf devices --json``."""
        async with pool.turn():
            status, body = await pool.ask(["devices", "--json"])
        return Response(body, status, media_type="application/json")

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        """Say that the service runs, and how many questions it answers now."""
        return {"status": "ok", "version": __version__, "questions": pool.taken}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        content = served_page(sorted(shipped_networks()), PRECISIONS)
        return Response(content, media_type=MEDIA_TYPES[".html"])

    @app.get("/page{suffix}", include_in_schema=False)
    async def part(suffix: Literal[".js", ".css"]) -> Response:
        return Response(page_file(suffix), media_type=MEDIA_TYPES[suffix])

    return app


def _network(question: Question, file: Path | None) -> str:
    """Return the network's word of the command line: our name of the file, or a shipped path."""
    if file is not None and question.network is not None:
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"send one of two: {_ONE_NETWORK}")
    if file is not None:
        return UPLOAD
    if question.network is None:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"the body is empty; send {_ONE_NETWORK}")
    shipped = shipped_networks()
    if question.network not in shipped:
        hint = did_you_mean(question.network, shipped)
        raise RefusedError(
            HTTPStatus.NOT_FOUND,
            f"no shipped network {question.network}{hint}; known: {', '.join(sorted(shipped))}",
        )
    return str(shipped[question.network])


async def _received(request: Request, folder: Path, max_bytes: int) -> Path | None:
    """Write the body to a file of our own name; None if it is empty.

    Raises
    ------
    RefusedError
        If it is too large, which is seen before it has arrived, or does not arrive.
    """
    too_large = RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the file is larger than {max_bytes >> 20} MB; send it without weights, or use resperf "
        "predict",
    )
    length = request.headers.get("content-length", "")
    if re.fullmatch(r"\d{1,18}", length) and int(length) > max_bytes:
        raise too_large
    received = 0
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        path = Path(file.name)
        try:
            async with asyncio.timeout(_RECEIVE_S):
                async for chunk in request.stream():
                    received += len(chunk)
                    if received > max_bytes:
                        raise too_large
                    file.write(chunk)
        except BaseException as error:
            path.unlink()
            if isinstance(error, TimeoutError | ClientDisconnect):
                line = "the file did not arrive; send it again"
                raise RefusedError(HTTPStatus.BAD_REQUEST, line) from error
            raise
    if not received:
        path.unlink()
        return None
    return path


async def _error(_request: Request, error: Exception) -> Response:
    """Answer an error by its line."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))
        line, status = f"{where}: {first['msg']}", HTTPStatus.UNPROCESSABLE_ENTITY
        if first["type"] == "string_pattern_mismatch":
            line = f"{where}: {printable(first['input'])!r} is no name, or no NAME=VALUE"
    elif isinstance(error, HTTPException):
        line, status = f"{error.detail}; GET / is the page", HTTPStatus(error.status_code)
    else:
        line = error_line(error)
        status = HTTPStatus(getattr(error, "status", HTTPStatus.SERVICE_UNAVAILABLE))
    return JSONResponse({"error": line}, status)
