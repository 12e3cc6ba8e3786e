"""Where things are made, and API calls by a template's words."""

from dataclasses import dataclass
from typing import Any, Literal

from ..account import Account


@dataclass(frozen=True, kw_only=True)
class Place:
    """An emulator's account, and the stack that things are made for."""

    account: Account
    stack: str
    emulator: Literal["localstack", "moto"]

    def client(self, service: str) -> Any:
        """The client of this service."""
        return self.account.client(service)


def call(client: Any, operation: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Call with those properties that the operation takes by the same name.

    A template may write a number as text; it is sent as what the operation takes.
    """
    name = client.meta.method_to_api_mapping[operation]
    shape = client.meta.service_model.operation_model(name).input_shape
    answer: dict[str, Any] = getattr(client, operation)(**{**_fit(shape, properties), **more})
    return answer


def _fit(shape: Any, value: Any) -> Any:
    if shape.type_name == "structure" and isinstance(value, dict):
        return {
            key: _fit(shape.members[key], one) for key, one in value.items() if key in shape.members
        }
    if shape.type_name == "list" and isinstance(value, list):
        return [_fit(shape.member, one) for one in value]
    if shape.type_name == "map" and isinstance(value, list):
        return {one["Key"]: one["Value"] for one in value}
    if shape.type_name == "map":
        return {key: _fit(shape.value, one) for key, one in value.items()}
    if shape.type_name in ("integer", "long"):
        return int(value)
    if shape.type_name in ("float", "double"):
        return float(value)
    if shape.type_name == "boolean" and isinstance(value, str):
        return value == "true"
    return str(value) if shape.type_name == "string" and isinstance(value, int) else value
