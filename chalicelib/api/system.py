"""The process's health and the API's own description."""

from typing import Any

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.errors import PalError

blueprint = Blueprint(__name__)


@blueprint.route("/healthz", methods=["GET"])
@endpoint(scope=None, answers={200: "HealthOut"})
async def healthz(request: Request[None]) -> Any:
    """Tell whether the process and its database answer; 503 if the database does not."""
    try:
        async with request.services.db.system() as tx:
            await tx.execute("SELECT 1")
    except PalError:
        return Answer(status=503, body={"status": "unavailable", "database": "unavailable"})
    return {"status": "ok", "database": "ok"}


@blueprint.route("/openapi.json", methods=["GET"])
@endpoint(scope=None, answers={200: dict[str, Any]})
async def openapi(request: Request[None]) -> Any:
    """Describe this API as OpenAPI 3.1."""
    from chalicelib.api.document import build_document  # asked for seldom, so built when asked

    return build_document()
