"""The tools that work in the session's microVM: run code, read and write files there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chalicelib.errors import PalError
from chalicelib.isolation.base import MachineLost, MachineUnavailable, SessionClosed
from chalicelib.providers.base import ToolSpec
from chalicelib.tools.base import Tool, ToolContext, ToolFailed

if TYPE_CHECKING:
    from chalicelib.tools.definitions import MicrovmTool
    from chalicelib.tools.toolbox import ToolDeps

_OUTPUT_BYTES: Final = 64 * 1024
_FILE_BYTES: Final = 64 * 1024
_FILE_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 15.0
_START_SECONDS: Final = 120.0

_NOTICES: Final = {
    "idle": "had not been used for long and was ended",
    "gone": "was no longer there",
    "expired": "had reached the longest time that a VM may live",
}
_CLOSED: Final = (
    "The session was stopped, and its VM was ended with it. Nothing runs there any more."
)
_LOST: Final = (
    "The session's VM ended before it answered, and all its files and variables are gone. This call"
    " may have begun; it has not been run again. The next call gets a fresh, empty VM."
)


@dataclass(frozen=True, kw_only=True)
class MicrovmCall:
    """What a model is told of a tool, which request it is, and how the answer reads.

    `request` is given the arguments and the seconds that the work itself may take.
    """

    description: str
    parameters: Mapping[str, Any]
    path: str
    request: Callable[[dict[str, Any], float], dict[str, Any]]
    answer: Callable[[dict[str, Any]], str]
    read_only: bool = False
    idempotent: bool = False


async def microvm_tools(
    definition: "MicrovmTool", /, *, tenant_id: str, deps: "ToolDeps"
) -> list[Tool]:
    """The one tool that this entry names; `timeout` is for the code and not for the VM's start."""
    made = CALLS[definition.name]
    limit = definition.timeout or (
        deps.settings.tool_timeout if made.path == "/v1/run" else _FILE_SECONDS
    )

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        return await _ask(made, arguments, context, limit=limit, deps=deps)

    return [
        Tool(
            spec=ToolSpec(
                name=definition.name,
                description=definition.description or made.description,
                parameters=dict(made.parameters),
            ),
            run=run,
            approval=definition.approval,
            read_only=made.read_only,
            idempotent=made.idempotent,
            timeout=_seconds(limit) + _START_SECONDS,
        )
    ]


def _seconds(limit: float) -> float:
    """How long the agent has: for as long as a call may take it may wait for one beside it."""
    return 2 * limit + _ANSWER_SECONDS


async def _ask(
    made: MicrovmCall,
    arguments: dict[str, Any],
    context: ToolContext,
    *,
    limit: float,
    deps: "ToolDeps",
) -> str:
    if deps.machines is None:
        raise ToolFailed("There are no microVMs here.")
    try:
        answer = await deps.machines.ask(
            context.tenant_id,
            context.session_id,
            made.path,
            made.request(arguments, limit),
            turn_id=context.turn_id,
            seconds=_seconds(limit),
            again=made.read_only or made.idempotent,
        )
    except SessionClosed:
        raise ToolFailed(_CLOSED) from None
    except MachineLost:
        raise ToolFailed(_LOST) from None
    except MachineUnavailable as exc:
        raise ToolFailed(str(exc) or "The session's VM cannot be used now.") from exc
    except PalError as exc:
        raise ToolFailed("The session's VM cannot be used now; try again.") from exc
    notice = ""
    if answer.notice is not None:
        notice = (
            f"Note: this is a fresh VM, since the session's earlier one {_NOTICES[answer.notice]}."
            " Files and variables from before are gone.\n\n"
        )
    if answer.refused is not None:
        raise ToolFailed(notice + answer.refused)
    try:
        return notice + made.answer(answer.body)
    except ToolFailed as exc:
        raise ToolFailed(notice + str(exc)) from None


def _run_request(arguments: dict[str, Any], limit: float) -> dict[str, Any]:
    return {
        "language": arguments.get("language", "python"),
        "code": arguments["code"],
        "timeoutSeconds": limit,
        "outputLimit": _OUTPUT_BYTES,
    }


def _run_answer(body: dict[str, Any]) -> str:
    """What came of a run. Code that fails is a result; code that had to be killed is a failure."""
    killed, code = bool(body.get("timedOut")), body.get("exitCode")
    lines = [] if killed or code is None else [f"exit code: {code}"]
    for stream in ("stdout", "stderr"):
        if text := body.get(stream):
            lines.append(f"{stream}:\n{text}")
    if not body.get("stdout") and not body.get("stderr"):
        lines.append("(no output)")
    if body.get("truncated"):
        lines.append(f"(output beyond {_OUTPUT_BYTES // 1024} KB was cut off)")
    text = "\n".join(lines)
    if not killed and not body.get("restarted"):
        return text
    why = "It ran too long and was killed."
    if not killed:
        why = "It was killed, most often for want of memory."
    if body.get("restarted"):
        why += " Python was started anew: variables are gone, files are kept."
    raise ToolFailed(f"{why}\n{text}")


def _read_request(arguments: dict[str, Any], _limit: float) -> dict[str, Any]:
    return {
        "path": arguments["path"],
        "offset": int(arguments.get("offset", 0)),
        "limit": _FILE_BYTES,
    }


def _read_answer(body: dict[str, Any]) -> str:
    text, size = str(body.get("content", "")), body.get("size")
    if body.get("encoding") == "base64":
        text = f"(binary, {size} bytes, in base64)\n{text}"
    if body.get("truncated"):
        text += f"\n(a part of {size} bytes; read on with `offset`)"
    return text or "(an empty file)"


def _write_request(arguments: dict[str, Any], _limit: float) -> dict[str, Any]:
    return {"path": arguments["path"], "content": arguments["content"], "encoding": "utf-8"}


def _write_answer(body: dict[str, Any]) -> str:
    return f"Written: {body.get('size')} bytes."


_PATH: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 1000,
    "description": "Where the file lies, in the working folder.",
}

CALLS: Final[dict[str, MicrovmCall]] = {
    "run_code": MicrovmCall(
        description=(
            "Runs code in this conversation's own machine and tells what it printed. Python keeps "
            "its variables from call to call, and the value of the last expression is shown; files "
            "in the working folder stay as well. Code that runs too long is killed."
        ),
        parameters={
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 100_000,
                    "description": "The code.",
                },
                "language": {
                    "type": "string",
                    "enum": ["python", "shell"],
                    "description": "Default: python.",
                },
            },
            "required": ["code"],
            "additionalProperties": False,
        },
        path="/v1/run",
        request=_run_request,
        answer=_run_answer,
    ),
    "read_file": MicrovmCall(
        description="Reads a file of this conversation's own machine.",
        parameters={
            "type": "object",
            "properties": {
                "path": _PATH,
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The byte to begin at. Default: 0.",
                },
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        path="/v1/read",
        request=_read_request,
        answer=_read_answer,
        read_only=True,
    ),
    "write_file": MicrovmCall(
        description=(
            "Writes a text file on this conversation's own machine; one that is there already is "
            "replaced."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": _PATH,
                "content": {
                    "type": "string",
                    "maxLength": 90_000,
                    "description": "The whole of the file's text.",
                },
            },
            "required": ["path", "content"],
            "additionalProperties": False,
        },
        path="/v1/write",
        request=_write_request,
        answer=_write_answer,
        # the same text a second time changes nothing
        idempotent=True,
    ),
}
"""Each by the name that an agent's `tools` and a model call it."""
