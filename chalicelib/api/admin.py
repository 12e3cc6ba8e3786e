"""What a tenant brings of its own: model vendors' keys, and secrets for its tools. Write-only."""

from typing import Any

from chalice.app import Blueprint

from chalicelib.api.agent_schemas import (
    SECRET_NAME,
    ProviderKeyIn,
    ProvidersIn,
    ProvidersOut,
    SecretIn,
    SecretOut,
    SecretsOut,
)
from chalicelib.api.agents import name_in_path
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.config import Secret
from chalicelib.errors import InvalidField, NotFound
from chalicelib.outbound import Guard, Refused
from chalicelib.secrets import Kept, ProviderKey
from chalicelib.texts import rfc3339

blueprint = Blueprint(__name__)


@blueprint.route("/v1/admin/providers", methods=["PUT"])
@endpoint(scope="admin", body=ProvidersIn, answers={200: ProvidersOut})
async def put_providers(request: Request[ProvidersIn]) -> Any:
    """Set or remove keys of model vendors; the keys themselves are never shown again."""
    guard = Guard(request.services.settings.tool_private_hosts)
    changes = {
        name: None if one is None else _provider_key(name, one, guard)
        for name, one in request.body.providers.items()
    }
    kept = await request.services.secrets.put_providers(request.caller.tenant_id, changes)
    return {"providers": [_shown(one) for one in kept]}


@blueprint.route("/v1/admin/providers", methods=["GET"])
@endpoint(scope="admin", answers={200: ProvidersOut})
async def list_providers(request: Request[None]) -> Any:
    """List the model vendors that the tenant has keys for."""
    kept = await request.services.secrets.list_providers(request.caller.tenant_id)
    return {"providers": [_shown(one) for one in kept]}


@blueprint.route("/v1/admin/secrets", methods=["GET"])
@endpoint(scope="admin", answers={200: SecretsOut})
async def list_secrets(request: Request[None]) -> Any:
    """List the secrets that tools' headers may refer to, without their values."""
    kept = await request.services.secrets.list_tool_secrets(request.caller.tenant_id)
    return {"secrets": [_shown(one) for one in kept]}


@blueprint.route("/v1/admin/secrets/{name}", methods=["PUT"])
@endpoint(scope="admin", body=SecretIn, answers={200: SecretOut})
async def put_secret(request: Request[SecretIn]) -> Any:
    """Set a secret; its value is never shown again."""
    name = name_in_path(request.call)
    if not _is_secret_name(name):
        raise InvalidField.of("name", "must be 1 to 64 letters, digits, _, . and -")
    kept = await request.services.secrets.put_tool_secret(
        request.caller.tenant_id, name, request.body.value
    )
    return _shown(kept)


@blueprint.route("/v1/admin/secrets/{name}", methods=["DELETE"])
@endpoint(scope="admin", answers={204: None})
async def delete_secret(request: Request[None]) -> Any:
    """Remove a secret."""
    name = name_in_path(request.call)
    if not _is_secret_name(name):
        raise NotFound("There is no such secret.")
    await request.services.secrets.delete_tool_secret(request.caller.tenant_id, name)
    return None


def _provider_key(name: str, given: ProviderKeyIn, guard: Guard) -> ProviderKey:
    field, url = f"providers.{name}.baseUrl", given.base_url
    if url is None:
        if "@" in name:
            raise InvalidField.of(field, "is needed for a provider with a name of its own")
    elif name == "bedrock":
        # its client resolves addresses by itself, unguarded
        raise InvalidField.of(field, "cannot be set for bedrock")
    else:
        _require_public(field, url, guard)
    return ProviderKey(api_key=Secret(given.api_key), base_url=url)


def _require_public(field: str, url: str, guard: Guard) -> None:
    try:
        guard.check_url(url)
    except Refused as exc:
        raise InvalidField.of(field, str(exc)) from exc
    if "?" in url or "#" in url:  # a path is put behind it
        raise InvalidField.of(field, "must not hold a query or a fragment")


def _is_secret_name(name: str) -> bool:
    # clients resolve . and .. before they send a path
    return bool(SECRET_NAME.fullmatch(name)) and name not in (".", "..")


def _shown(kept: Kept) -> dict[str, Any]:
    body = {"name": kept.name, "hint": kept.hint, "updatedAt": rfc3339(kept.updated_at)}
    return body if kept.base_url is None else {**body, "baseUrl": kept.base_url}
