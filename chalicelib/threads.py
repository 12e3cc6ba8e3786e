"""Work that blocks, on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def on_own_thread(work: Callable[[], T], *, name: str) -> T:
    """The work's result, from a thread that keeps no process from ending.

    For calls that may hang for minutes: the loop's own threads also resolve names.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: Any, failure: Exception | None) -> None:
        if done.cancelled():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as exc:
            failure = exc
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
