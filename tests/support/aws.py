"""AWS as moto's server on a port, for what asks boto3 for its endpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest


@contextmanager
def aws_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The base URL of an empty AWS, which boto3 finds by the environment."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    base = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", base)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    # its servers of one process share what they hold
    urlopen(Request(f"{base}/moto-api/reset", method="POST"), timeout=10).close()
    try:
        yield base
    finally:
        server.stop()
