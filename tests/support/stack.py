"""The whole system in the test's own process: its loop on a thread, a database, a fake provider."""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import uvicorn
import uvloop

import app as application
from chalicelib import auth, bridge, config, services
from chalicelib.auth import Principal
from chalicelib.config import Secret, Settings
from chalicelib.db import Database
from chalicelib.gateway.asgi import Gateway
from chalicelib.gateway.server import bind
from chalicelib.services import Services
from tests.support.http import HttpClient
from tests.support.postgres import TestDatabase

T = TypeVar("T")


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coro: Coroutine[Any, Any, T], seconds: float = 30) -> T:
        """The coroutine's result."""
        return self.start(coro).result(seconds)

    def start(self, coro: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start it and go on."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def close(self) -> None:
        """Stop the loop; what still runs on it is cancelled first."""

        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Node:
    """One process's worth of Palimpsest: services on a loop, and a gateway on a port if asked."""

    def __init__(self, settings: Settings, *, sweeping: bool = False) -> None:
        self.settings = settings
        self.on = Loop()
        self.services = self.on.run(self._start(sweeping))
        self._server: uvicorn.Server | None = None
        self._serving: Future[None] | None = None
        self.base = ""

    async def _start(self, sweeping: bool) -> Services:
        made = Services.build(self.settings)
        await made.start(sweeping=sweeping)
        return made

    def run(self, coro: Coroutine[Any, Any, T], seconds: float = 30) -> T:
        """Run on this node's loop."""
        return self.on.run(coro, seconds)

    def sweep(self, unclaimed: float = 0.0) -> int:
        """One round of the sweep, now."""
        return self.run(self.services.sweep(unclaimed=unclaimed))

    def serve(self) -> str:
        """Serve HTTP on a free port: the base URL."""
        sock = bind("127.0.0.1", 0)
        port = sock.getsockname()[1]
        self._serving = self.on.start(self._serve(sock))
        self.base = f"http://127.0.0.1:{port}"
        return self.base

    async def _serve(self, sock: socket.socket) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                Gateway(application.app),
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        await self._server._serve([sock])  # without its signal handlers: this is no main thread

    def close(self) -> None:
        """Drain at once and stop."""

        async def stop() -> None:
            self.services.settings = replace(self.services.settings, drain=0.0)
            await self.services.stop()

        self.run(stop())
        if self._server is not None and self._serving is not None:
            # nothing is left that it should wait for
            self._server.should_exit = self._server.force_exit = True
            self._serving.result(20)
        self.on.close()


class Stack:
    """A database with two tenants, and nodes on it; the first node is the process's own."""

    def __init__(self, database: TestDatabase, provider_url: str, **changes: Any) -> None:
        self.database = database
        self.settings = replace(
            Settings(
                database_url=Secret(database.app),
                database_listen_url=Secret(
                    database.direct if database.app == database.direct else ""
                ),
                database_pool=8,
                providers=(("openai", "fake"),),
                openai_base_url=provider_url,
                openai_api_key=Secret("sk-fake"),
                provider_first_timeout=20.0,
                provider_idle_timeout=20.0,
                provider_retries=0,
                session_tree="plain",  # a scripted provider would be asked to keep it
                drain=0.0,
            ),
            **changes,
        )
        config.use(self.settings)
        self.node = Node(self.settings)
        self._nodes = [self.node]
        bridge.lend(self.node.on.loop)
        services.use(self.node.services)
        self.tenant, self.key = self.node.run(self._tenant("one"))
        self.other_tenant, self.other_key = self.node.run(self._tenant("two"))

    async def _tenant(self, name: str, **rules: Any) -> tuple[str, str]:
        db = Database(self.database.owner, size=1)
        await db.open()
        try:
            tenant_id = await auth.create_tenant(db, name=name, **rules)
            _, key = await auth.create_key(db, tenant_id=tenant_id, name="test", scopes=auth.SCOPES)
            return tenant_id, key
        finally:
            await db.close()

    def make_key(self, *scopes: str, tenant_id: str | None = None) -> tuple[str, str]:
        """Another key: (id, key)."""

        async def make() -> tuple[str, str]:
            db = Database(self.database.owner, size=1)
            await db.open()
            try:
                return await auth.create_key(
                    db, tenant_id=tenant_id or self.tenant, name="more", scopes=scopes
                )
            finally:
                await db.close()

        return self.node.run(make())

    def make_tenant(self, name: str, **rules: Any) -> tuple[str, str]:
        """Another tenant: (id, key)."""
        return self.node.run(self._tenant(name, **rules))

    @property
    def caller(self) -> Principal:
        """The first tenant's key, authenticated."""
        return self.node.run(self.node.services.auth.bearer(f"Bearer {self.key}"))

    def another_node(self, *, sweeping: bool = False, **changes: Any) -> Node:
        """Another process on the same database, `sweeping` as the gateway does."""
        node = Node(replace(self.settings, **changes), sweeping=sweeping)
        self._nodes.append(node)
        return node

    def http(self, key: str | None = None) -> HttpClient:
        """A client of the first node over real HTTP."""
        base = self.node.base or self.node.serve()
        return HttpClient(base, self.key if key is None else key)

    def close(self) -> None:
        """Stop every node."""
        for node in reversed(self._nodes):
            node.close()
        services.use(None)
        config.use(None)
