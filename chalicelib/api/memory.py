"""Memory. Distillation is off until its domain is there, and answers as the contract says."""

from typing import Any

from chalice.app import Blueprint

from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.schemas import DistillatesOut, DistillOut

blueprint = Blueprint(__name__)


@blueprint.route("/v1/memory/distillates", methods=["GET"])
@endpoint(scope="memory", answers={200: DistillatesOut})
async def list_distillates(request: Request[None]) -> Any:
    """List what has been distilled; empty while distillation is off."""
    return {"enabled": False, "distillates": []}


@endpoint(scope="memory", answers={200: DistillOut})
async def distill(request: Request[None]) -> Any:
    """Run a slice of distillation now; finds nothing while distillation is off."""
    return {"enabled": False, "found": 0}
