"""The one crossing from synchronous code (Chalice's views) to the one event loop of the process.

The loop outlives every call, so that connections do. The gateway lends its own loop; anywhere
else (an API Lambda, the Chalice test client) the first call starts one on a thread.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def lend(loop: asyncio.AbstractEventLoop) -> None:
    """Make this running loop the process's own."""
    global _loop
    _loop = loop


def loop() -> asyncio.AbstractEventLoop:
    """The process's loop, started on a thread of its own if no one lent one."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = _new_loop()
            threading.Thread(target=_loop.run_forever, name="pal-loop", daemon=True).start()
        return _loop


def run(coro: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from any thread but the loop's own. Context variables go along."""
    return asyncio.run_coroutine_threadsafe(coro, loop()).result()


def _new_loop() -> asyncio.AbstractEventLoop:
    # not on Lambda: 14 MB in every package, for a process that has one request at a time
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
