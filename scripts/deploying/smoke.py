"""A look at a deployed stage from outside: its health, and a turn that streams, by each URL."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final

from .errors import DeployError

_ANSWER_SECONDS: Final = 120
_WARM_TRIES: Final = 6
_WARM_WAIT: Final = 5.0


def try_out(outputs: Mapping[str, str], key: str, *, wait: float = _WARM_WAIT) -> None:
    """Raise DeployError, saying what did not work, unless all of it does.

    `wait` goes by between two tries of a stage that is still warming up.
    """
    api, stream = outputs["ApiUrl"].rstrip("/"), outputs["StreamUrl"].rstrip("/")
    _be_healthy(api, wait)
    made = _call("POST", f"{api}/v1/sessions", key, {"agentName": "smoke"})
    session = f"/v1/sessions/{made['id']}"
    try:
        for base in (api, stream):
            _turn(f"{base}{session}/messages", key)
    finally:
        _call("DELETE", f"{api}{session}", key)


def _be_healthy(api: str, wait: float) -> None:
    for left in reversed(range(_WARM_TRIES)):
        try:
            _call("GET", f"{api}/healthz", None)
            return
        except DeployError:
            if not left:
                raise
        time.sleep(wait)


def _call(method: str, url: str, key: str | None, body: Any = None) -> Any:
    with _open(method, url, key, body) as answer:
        try:
            text = answer.read()
            return json.loads(text) if text else None
        except (OSError, HTTPException, ValueError) as exc:
            raise DeployError(f"{method} {url} gave no whole answer: {exc!r}") from exc


def _open(
    method: str, url: str, key: str | None, body: Any = None, accept: str = "application/json"
) -> Any:
    headers = {"Accept": accept, "Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        return urllib.request.urlopen(request, timeout=_ANSWER_SECONDS)
    except urllib.error.HTTPError as exc:
        with exc:
            said = exc.read(500).decode(errors="replace")
        raise DeployError(f"{method} {url} answered {exc.code}: {said}") from exc
    except (OSError, HTTPException) as exc:
        raise DeployError(f"{method} {url} did not answer: {exc}") from exc


def _turn(url: str, key: str) -> None:
    said = {"content": "Say that you are there."}
    with _open("POST", url, key, said, accept="text/event-stream") as answer:
        kind = answer.headers.get_content_type()
        if kind != "text/event-stream":
            raise DeployError(f"POST {url} answered {kind} and not a stream of events.")
        try:
            for name, data in _events(answer):
                if name == "message_completed":
                    return
                if name == "message_error":
                    raise DeployError(f"The turn at {url} ended in {data.get('code')}.")
        except (OSError, HTTPException, ValueError) as exc:
            raise DeployError(f"The stream of {url} broke off: {exc}") from exc
    raise DeployError(f"The stream of {url} ended before its turn did.")


def _events(answer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for raw in answer:
        field, _, value = raw.decode().rstrip("\r\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
