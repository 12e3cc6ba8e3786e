"""Keeps what the code under test asks of AWS: which operation, on what, from which module.

What a test itself asks, to set AWS up or to look, is not kept, nor what a process of its own asks.
`scripts/check-policies` compares what is kept with what each function's role allows.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = "RECORDED_CALLS"
"""The environment variable that names the folder; without it nothing is kept."""

_CODE = str(Path(__file__).parents[2] / "chalicelib") + os.sep
# parameters that say what an operation is on
_NAMES = ("FunctionName", "KeyId", "QueueUrl", "SecretId", "modelId", "imageIdentifier")


def keep_calls(folder: Path) -> None:
    """From now on, append each new kind of call to a file of this process in the folder."""
    from botocore.client import BaseClient

    folder.mkdir(parents=True, exist_ok=True)
    plain = BaseClient._make_api_call
    kept: set[str] = set()

    def make_call(client: Any, operation_name: str, api_params: dict[str, Any]) -> Any:
        site = _site()
        if site is not None:
            service = client.meta.service_model.service_name
            line = json.dumps(
                {
                    "site": site,
                    "operation": f"{service}:{operation_name}",
                    "on": {name: api_params[name] for name in _NAMES if name in api_params},
                }
            )
            if line not in kept:
                kept.add(line)
                with (folder / f"{os.getpid()}.jsonl").open("a") as file:
                    file.write(line + "\n")
        return plain(client, operation_name, api_params)

    BaseClient._make_api_call = make_call


def _site() -> str | None:
    """The module of ours that is at it, None where it is a test."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_CODE):
            return str(frame.f_globals["__name__"])
        frame = frame.f_back  # type: ignore[assignment]
    return None
