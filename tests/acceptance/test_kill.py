"""SIGKILL at random moments: nothing accepted is lost, nothing is answered twice."""

import http.client as http_client
import random
import threading
from collections.abc import Callable

from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import HttpClient
from tests.support.process import GatewayProcess
from tests.support.stack import Stack

TURNS = 20


def test_killed_process_loses_no_accepted_message_and_answers_none_twice(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: the promise of a 202."""
    provider.default(lambda _: Reply(first_ms=20, inter_ms=10))
    dice = random.Random(20)
    accepted: dict[str, list[str]] = {}
    http = stack.http()  # a process that is never killed, to look with
    sessions = [
        http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"] for _ in range(4)
    ]
    lease = {"PAL_TURN_LEASE": "1s"}
    sent = 0
    while sent < TURNS:
        gateway = make_gateway(**lease)
        client = HttpClient(gateway.base, stack.key)
        killer = threading.Timer(dice.uniform(0.02, 0.25), gateway.kill)
        killer.start()
        try:
            while sent < TURNS:
                session = sessions[sent % len(sessions)]
                content = f"message {sent} of five words"
                reply = client.call(
                    "POST",
                    f"/v1/sessions/{session}/messages",
                    {"content": content},
                    # a message whose answer was lost in the kill is sent again, as a client would
                    headers={"Idempotency-Key": f"message-{sent}"},
                )
                if reply.status == 202:
                    accepted.setdefault(session, []).append(content)
                    sent += 1
                threading.Event().wait(dice.uniform(0.0, 0.08))
        except (OSError, http_client.HTTPException):
            pass  # killed in mid-request: it was not accepted, or its answer was lost
        killer.join()
    survivor = make_gateway(**lease)
    client = HttpClient(survivor.base, stack.key)
    for session, contents in accepted.items():
        events = client.stream("GET", f"/v1/sessions/{session}/events")
        events.read_until("connected")
        # an interrupted session takes its cut messages up with the next one
        last = client.call("POST", f"/v1/sessions/{session}/messages", {"content": "the last"})
        assert last.status == 202
        while events.read_until("message_completed")[-1].data["turnId"] != last.json["turnId"]:
            pass
        events.close()
        said = client.call("GET", f"/v1/sessions/{session}").json["messages"]
        users = [one["content"] for one in said if one["role"] == "user"]
        assert set(contents) <= set(users)
        assert len(users) == len(set(users))  # none is there twice
        turns = [one["turnId"] for one in said if one["role"] == "assistant"]
        assert len(turns) == len(set(turns))  # no turn has two answers
        answered = {one["turnId"] for one in said if one["role"] == "assistant"}
        assert {one["turnId"] for one in said if one["role"] == "user"} == answered
        # every answer follows its question, and none is an answer to an older one
        assert [one["role"] for one in said][-1] == "assistant"
    survivor.stop()
    assert stack.database.one("SELECT count(*) FROM pal.turns WHERE status = 'running'") == 0
