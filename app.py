"""The Chalice application: registers the blueprints and functions that live in chalicelib."""

from typing import Any

from chalicelib import jobs
from chalicelib.api import (
    admin,
    agents,
    approvals,
    distillates,
    episodes,
    memory,
    memory_policy,
    people,
    session_state,
    sessions,
    streams,
    system,
)
from chalicelib.api.app import PalApp

app = PalApp(app_name="palimpsest", configure_logs=False)
for blueprint in (
    sessions.blueprint,
    session_state.blueprint,
    streams.blueprint,
    approvals.blueprint,
    agents.blueprint,
    memory.blueprint,
    distillates.blueprint,
    episodes.blueprint,
    memory_policy.blueprint,
    people.blueprint,
    admin.blueprint,
    system.blueprint,
    jobs.blueprint,
):
    app.register_blueprint(blueprint)


@app.lambda_function(name="stream")
def stream(event: Any, context: Any) -> Any:
    """Stand for the streaming function, which AWS_LAMBDA_EXEC_WRAPPER starts under its own loop."""
    raise RuntimeError("the stream function runs under chalicelib/stream/bootstrap")
