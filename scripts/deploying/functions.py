"""The stack's functions for the database: new code on them alone, and calls of them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from .account import Account
from .errors import DeployError
from .stacks import Stack

# in the order in which they are called
DATABASE_STEPS: Final = ("Bootstrap", "Migrate")
# a function in a VPC that no one has called for weeks has lost its network: the first call fails,
# and has Lambda make it anew
_NOT_READY: Final = ("ResourceNotReadyException", "ResourceConflictException")
_CALLS: Final = 3


class CallFailed(DeployError):
    """A function ended in an error."""


def invoke(account: Account, function: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The function's answer; CallFailed with its own words if it has failed."""
    aws, asked = account.client("lambda"), json.dumps(payload).encode()
    for left in reversed(range(_CALLS)):
        try:
            answer = aws.invoke(FunctionName=function, Payload=asked)
            break
        except ClientError as exc:
            if not left or exc.response["Error"]["Code"] not in _NOT_READY:
                raise
        aws.get_waiter("function_active_v2").wait(FunctionName=function)
    body = json.loads(answer["Payload"].read() or b"null")
    if "FunctionError" in answer:
        said = body if isinstance(body, dict) else {}
        kind = said.get("errorType", "an error")
        raise CallFailed(f"{function} ended in {kind}: {said.get('errorMessage', 'no message')}")
    return body if isinstance(body, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Code:
    """What a function runs: its zip in the bucket, and its layers' zips."""

    bucket: str
    key: str
    layers: tuple[tuple[str, str, str], ...]
    """Each one's name, bucket and key."""


def code_of(processed: dict[str, Any], logical_id: str) -> Code | None:
    """Where a processed template has a function's code; None if it has no such function."""
    resources = processed["Resources"]
    if logical_id not in resources:
        return None
    properties = resources[logical_id]["Properties"]
    layers = []
    for one in properties.get("Layers", []):
        layer = resources.get(one.get("Ref", ""), {}) if isinstance(one, dict) else {}
        if layer:
            content = layer["Properties"]["Content"]
            layers.append((one["Ref"], content["S3Bucket"], content["S3Key"]))
    code = properties["Code"]
    return Code(bucket=code["S3Bucket"], key=code["S3Key"], layers=tuple(layers))


class NewCode:
    """New code on one function, while all others run what they ran."""

    def __init__(
        self, account: Account, stack: Stack, logical_id: str, *, old: Code, new: Code
    ) -> None:
        self._aws, self._old, self._new = account.client("lambda"), old, new
        function = stack.physical_id(logical_id)
        if function is None:
            raise DeployError(f"{stack.name} has no {logical_id}.")
        self.function = function
        self._layers: list[str] = []
        self._published: list[tuple[str, int]] = []

    def put(self) -> None:
        """Give the function the new code, and the new layers where their content is new."""
        now = self._aws.get_function_configuration(FunctionName=self.function)
        self._layers = [one["Arn"] for one in now.get("Layers", [])]
        there = {(bucket, key) for _, bucket, key in self._old.layers}
        if any((bucket, key) not in there for _, bucket, key in self._new.layers):
            self._set_layers([self._publish(*one) for one in self._new.layers])
        self._set_code(self._new)

    def take_back(self) -> None:
        """Give the function what it ran before."""
        self._set_code(self._old)
        if self._published:
            self._set_layers(self._layers)

    def tidy(self) -> None:
        """Delete the layers' versions that were made for this; the stack has its own."""
        for name, version in self._published:
            # left over they cost nothing, and how the deployment ended is what matters
            with suppress(BotoCoreError, ClientError):
                self._aws.delete_layer_version(LayerName=name, VersionNumber=version)

    def _publish(self, logical_id: str, bucket: str, key: str) -> str:
        made = self._aws.publish_layer_version(
            LayerName=f"{self.function}-{logical_id}"[:140],
            Description="For one deployment's migrations; deleted at its end.",
            Content={"S3Bucket": bucket, "S3Key": key},
        )
        self._published.append((made["LayerArn"], made["Version"]))
        return str(made["LayerVersionArn"])

    def _set_code(self, code: Code) -> None:
        self._aws.update_function_code(
            FunctionName=self.function, S3Bucket=code.bucket, S3Key=code.key
        )
        self._settle()

    def _set_layers(self, arns: list[str]) -> None:
        self._aws.update_function_configuration(FunctionName=self.function, Layers=arns)
        self._settle()

    def _settle(self) -> None:
        self._aws.get_waiter("function_updated_v2").wait(FunctionName=self.function)
