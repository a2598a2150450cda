"""The open browser pages of a console, each at its own pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

Message = str | bytes
# Ends what a page is sent at once; the page answers that it has shown it.
_MARK = json.dumps({"type": "mark"})


class Page:
    """One browser page. What it has no time for is replaced by what is newer.

    It is sent no more before it has said that it has shown what came before. Otherwise the network
    would hold seconds of images for a browser that is slow, and the operator would see the past.

    Args:
        socket: Its websocket.
    """

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._pending: dict[str, Message] = {}
        self._filled = asyncio.Event()
        self._shown = asyncio.Event()

    def put(self, key: str, message: Message) -> None:
        """Send a message as soon as the page takes one, unless a newer one of this key comes."""
        self._pending[key] = message
        self._filled.set()

    async def write(self) -> None:
        """Send what was put, until the page is closed."""
        while not self._socket.closed:
            await self._filled.wait()
            self._filled.clear()
            messages, self._pending = list(self._pending.values()), {}
            self._shown.clear()
            for message in messages:
                if isinstance(message, str):
                    await self._socket.send_str(message)
                else:
                    await self._socket.send_bytes(message)
            await self._socket.send_str(_MARK)
            await self._shown.wait()

    def note_shown(self) -> None:
        """The page has shown what was sent."""
        self._shown.set()


class Pages:
    """All open pages. One that is opened or reloaded is told everything that the others know."""

    def __init__(self) -> None:
        self._open: set[Page] = set()
        self._last: dict[str, Message] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Page]:
        return iter(self._open)

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Tell all pages, and those that are opened later, until there is something newer."""
        message = packed(kind, content)
        if self._last.get(kind) != message:
            self.tell_bytes(kind, message)

    def tell_bytes(self, key: str, message: Message) -> None:
        """The same for a message that is packed already."""
        self._last[key] = message
        for page in self._open:
            page.put(key, message)

    def forget(self, prefix: str) -> None:
        """Do not tell later pages what begins with this key."""
        self._last = {k: m for k, m in self._last.items() if not k.startswith(prefix)}

    def add(self, page: Page) -> None:
        """Open a page."""
        self._open.add(page)
        for key, message in self._last.items():
            page.put(key, message)

    def remove(self, page: Page) -> None:
        """Close a page."""
        self._open.discard(page)


def packed(kind: str, content: dict[str, Any]) -> str:
    """A text message of a page."""
    return json.dumps({"type": kind, **content})
