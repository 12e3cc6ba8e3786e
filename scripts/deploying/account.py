"""One account and region of AWS, or an emulator's: clients, and who we are there."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config

from .errors import DeployError

# throttling is a normal event in a deployment's many reads
_CONFIG = Config(retries={"mode": "adaptive", "max_attempts": 10}, user_agent_extra="palimpsest")
# a call of a function lasts as long as the function, with no byte in between
_CALLS = _CONFIG.merge(Config(read_timeout=930, tcp_keepalive=True))


class Account:
    """Clients by service name, each made once; `client_of` makes one."""

    def __init__(self, client_of: Callable[..., Any], region: str) -> None:
        self._client_of, self.region = client_of, region
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """The client of this service."""
        if service not in self._clients:
            self._clients[service] = self._client_of(service)
        return self._clients[service]

    @cached_property
    def _identity(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client("sts").get_caller_identity()
        return found

    @property
    def id(self) -> str:
        """The account's twelve digits."""
        return str(self._identity["Account"])

    @property
    def partition(self) -> str:
        """`aws`, or the part of AWS that the caller is in."""
        return str(self._identity["Arn"]).split(":")[1]


def on_aws(region: str | None) -> Account:
    """The account that the environment's credentials belong to."""
    session = boto3.session.Session(region_name=region)
    if session.region_name is None:
        raise DeployError("No region is set; pass --region or set AWS_REGION.")

    def client_of(service: str) -> Any:
        return session.client(service, config=_CALLS if service == "lambda" else _CONFIG)

    return Account(client_of, session.region_name)
