"""The other side of `rounds`, as a process: a vendor and a tool that answer at once.

The vendor asks for the tool as many times in a row as the model's name says: `rounds-4`.
"""

import re
import signal

from tests.fakes.openai_server import Call, FakeOpenAI, Recorded, Reply
from tests.fakes.tool_server import Answer, ToolServer


def asks(recorded: Recorded) -> Reply:
    """A call of the tool, or the answer once there were enough."""
    wanted = int(recorded.body["model"].rpartition("-")[2])
    had = 0
    for message in reversed(recorded.body["messages"]):
        if message["role"] == "user":
            break
        had += message["role"] == "assistant"
    if had < wanted:
        return Reply(tool_calls=[Call("note", {"id": str(had)})])
    return Reply(pieces=["done"])


def main() -> None:
    with FakeOpenAI() as vendor, ToolServer() as tools:
        vendor.default(asks)
        tools.on("/note", Answer(pieces=[b"buy milk"]))
        print(f"ready {vendor.base_url} tool={tools.url('/note')}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


READY = re.compile(r"^ready (http://\S+) tool=(\S+)", re.MULTILINE)

if __name__ == "__main__":
    main()
