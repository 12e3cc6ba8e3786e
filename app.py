"""The Chalice application: registers the blueprints and functions that live in chalicelib.

On Lambda a blueprint is registered when it is first asked for: all of them are half of a cold
start, and a call needs one. What every call needs is imported with this module, while Lambda gives
the function a whole processor; so is all the rest where it is made ready before anyone calls.
"""

import gc
import os
from importlib import import_module
from typing import Any

from chalicelib.api.app import PalApp

# the first parts of each module's paths, behind /v1
BLUEPRINTS = {
    "chalicelib.api.sessions": ("sessions", "stream-tokens"),
    "chalicelib.api.session_state": ("sessions",),
    "chalicelib.api.streams": ("sessions", "memory"),
    "chalicelib.api.approvals": ("approvals", "sessions"),
    "chalicelib.api.agents": ("agents",),
    "chalicelib.api.memory": ("memory",),
    "chalicelib.api.distillates": ("memory",),
    "chalicelib.api.episodes": ("memory",),
    "chalicelib.api.memory_policy": ("memory",),
    "chalicelib.api.people": ("people",),
    "chalicelib.api.admin": ("admin",),
    "chalicelib.api.system": ("healthz", "openapi.json"),
    "chalicelib.jobs": (),
}

app = PalApp(app_name="palimpsest")
if (
    "AWS_LAMBDA_RUNTIME_API" not in os.environ
    or os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "provisioned-concurrency"
):
    app.register_all(BLUEPRINTS)
else:
    # what is imported stays, and need not be looked through for garbage over and over
    gc.set_threshold(50_000)
    import_module("chalicelib.api.endpoint")
    app.register_later(BLUEPRINTS)


@app.lambda_function(name="stream")
def stream(event: Any, context: Any) -> Any:
    """Stand for the streaming function, which AWS_LAMBDA_EXEC_WRAPPER starts under its own loop."""
    raise RuntimeError("the stream function runs under chalicelib/stream/bootstrap")
