"""What every request passes: its Host, its origin, its token; and what every answer says."""

from __future__ import annotations

import ipaddress
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}  # fmt: skip


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
        self._app, self._host, self._token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            app = JSONResponse({"error": refusal[1]}, refusal[0])
        await app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        # A page of elsewhere can make its own name resolve to this machine. Where other machines
        # ask, under names that are not known here, such a page lacks the token.
        if is_loopback(self._host) and not is_loopback(name):
            return 400, f"this service is not {name!r}; open the printed address"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 400, f"pages of {origin!r} may not ask this service"
        given, wanted = headers.get("authorization", ""), f"Bearer {self._token}"
        # The page itself says nothing.
        is_open = not self._token or not scope["path"].startswith("/v1/")
        if is_open or secrets.compare_digest(given.encode(), wanted.encode()):
            return None
        return 401, "this service needs its token: Authorization: Bearer TOKEN"
