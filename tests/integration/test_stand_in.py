"""Without a model: the stand-in answers turns, and what it says is nobody's answer."""

from collections.abc import Callable

from tests.support.agents import turn
from tests.support.answers import new_session
from tests.support.stack import Stack


def test_what_the_stand_in_says_answers_no_question_and_is_not_remembered(
    make_stack: Callable[..., Stack],
) -> None:
    """Lost if red: a memory of 'I am a stand-in', told by the first real model that is set."""
    stack = make_stack(providers=(("offline", "offline"),))
    http = stack.http()
    session = new_session(http)
    turn(http, session, "We decided to fly on 3 May. Should we book the hotel first?")
    stack.node.run(stack.node.services.engine.wait_idle())
    nodes = http.call("GET", f"/v1/sessions/{session}/tree").json["nodes"]
    asked = [one for one in nodes if one["kind"] == "open_question"]
    assert [one["status"] for one in asked] == ["open"]
    assert "stand-in" not in str(nodes)
    assert http.call("POST", f"/v1/sessions/{session}/end").json["promoted"] == 1
