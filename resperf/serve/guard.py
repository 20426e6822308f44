"""What every request passes: its Host, its origin, its token; and what every answer says."""

from __future__ import annotations

import ipaddress
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_GUARDED = "/v1/"
"""Paths below need the token; the page itself says nothing."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: ``localhost``, ``127.0.0.1``, ``::1``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


class Guard:
    """Refuses what a page of elsewhere makes a browser send, and what lacks the token.

    Parameters
    ----------
    app : ASGI application
    host : str
        That the service listens on.
    token : str
        That clients must send as ``Authorization: Bearer``; none if empty.
    """

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self._app, self._host, self._token = app, host.casefold(), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        status, line = self._refusal(scope)
        if line:
            answer = JSONResponse({"error": line}, status)
            await answer(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not self._is_ours(name.casefold()):
            return HTTPStatus.BAD_REQUEST, f"this service is not {name!r}; open the printed address"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return HTTPStatus.BAD_REQUEST, f"pages of {origin!r} may not ask this service"
        given = headers.get("authorization", "")
        wanted = f"Bearer {self._token}"
        if (
            self._token
            and scope["path"].startswith(_GUARDED)
            and not secrets.compare_digest(given.encode(), wanted.encode())
        ):
            line = "this service needs its token: Authorization: Bearer TOKEN"
            return HTTPStatus.UNAUTHORIZED, line
        return HTTPStatus.OK, ""

    def _is_ours(self, name: str) -> bool:
        """Whether a Host header names this service.

        A page of elsewhere can make its own name resolve to this machine, but no address.
        """
        if name == self._host or is_loopback(name):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return not is_loopback(self._host)
