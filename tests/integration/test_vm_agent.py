"""The agent of a session's VM, as a process of its own, over its socket."""

import ast
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.postgres import free_port
from tests.support.vm_agent import AGENT, FILE, MEMORY, Agent, SocketConnection
from tests.support.waiting import until


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One for the module; the interpreter's variables are nobody's to rely on."""
    made = Agent(tmp_path_factory.mktemp("agent"), PAL_SECRET="do not tell")
    until(lambda: os.path.exists(made.socket))
    yield made
    assert made.stop() == 0


def test_variables_functions_and_files_live_from_run_to_run(agent: Agent) -> None:
    """Else an agent would have to send everything again with each run."""
    assert agent.run("x = 41\ndef more(n):\n    return n + 1")["stdout"] == ""
    assert agent.run("print('so')\nmore(x)")["stdout"] == "so\n42\n"
    agent.call("/v1/write", path="mine/word.py", content="WORD = 'héllo'\n")
    assert agent.run("from mine.word import WORD\nWORD")["stdout"] == "'héllo'\n"
    assert agent.shell("cat mine/word.py; echo bad >&2; exit 3") == {
        "stdout": "WORD = 'héllo'\n",
        "stderr": "bad\n",
        "exitCode": 3,
        "timedOut": False,
        "truncated": False,
        "durationMs": pytest.approx(0, abs=60000),
    }


def test_an_error_shows_the_code_s_own_lines(agent: Agent) -> None:
    """The model needs the line that failed, not the agent's insides."""
    answer = agent.run("def f():\n    return 1 / 0\n\nf()")
    assert answer["exitCode"] == 1
    assert "return 1 / 0" in answer["stderr"]
    assert "ZeroDivisionError" in answer["stderr"]
    assert "repl" not in answer["stderr"]
    assert "SyntaxError" in agent.run("x = = 1")["stderr"]
    assert agent.run("import sys; sys.exit(4)")["exitCode"] == 4


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("python", "print('begun', flush=True)\nwhile True: pass", id="python"),
        pytest.param("shell", "echo begun; sleep 1000 & exec sleep 1000", id="shell"),
        pytest.param("shell", "echo begun; exec >&- 2>&-; sleep 1000", id="shell-without-output"),
        pytest.param(
            "python",
            "print('begun', flush=True)\nimport os\nos.close(1); os.close(2)\nwhile True: pass",
            id="python-without-output",
        ),
    ],
)
def test_a_hung_run_is_ended_and_says_so(agent: Agent, language: str, code: str) -> None:
    """A loop without end would hold the session up for ever."""
    agent.run("x = 1")
    agent.shell("echo kept > kept")
    answer = agent.run(code, language, timeoutSeconds=0.3)
    assert answer["timedOut"]
    assert answer["exitCode"] is None
    assert answer["stdout"] == "begun\n"
    assert "its time was up (0.3 s)" in answer["stderr"]
    assert answer.get("restarted", False) == (language == "python")
    assert agent.run("'x' in globals(), open('kept').read()")["stdout"] == (
        f"({language == 'shell'}, 'kept\\n')\n"
    )


def test_a_run_that_takes_too_much_memory_is_ended(agent: Agent) -> None:
    """One careless line would take the whole VM down, or a laptop with it."""
    answer = agent.run(f"hog = bytearray({2 * MEMORY})")
    assert answer["restarted"]
    assert "MemoryError" in answer["stderr"]
    several = f"""
import os, time
for _ in range(6):
    if os.fork() == 0:
        mine = bytearray(b'x') * {MEMORY // 3}
        time.sleep(1000)
time.sleep(1000)
"""
    answer = agent.run(several, timeoutSeconds=40)
    assert not answer["timedOut"]
    assert answer["restarted"]
    assert "too much memory" in answer["stderr"]
    assert agent.run("1 + 1")["stdout"] == "2\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("python", "import sys\nfor _ in range(99):\n  print('é' * 9999)", id="python"),
        pytest.param("shell", "head -c 3000000 /dev/zero | tr '\\0' a", id="shell"),
    ],
)
def test_output_is_cut_and_the_run_goes_on(agent: Agent, language: str, code: str) -> None:
    """A flood must neither fill the agent's memory nor stop the program at a full pipe."""
    answer = agent.run(code, language, outputLimit=1001)
    assert answer["truncated"]
    assert answer["exitCode"] == 0
    assert 999 <= len(answer["stdout"].encode()) <= 1001
    assert "\N{REPLACEMENT CHARACTER}" not in answer["stdout"]


@pytest.mark.parametrize(
    "start", [pytest.param("sleep {0} &", id="child"), pytest.param("setsid sleep {0} &", id="own")]
)
def test_what_a_shell_leaves_behind_does_not_hang_the_answer(agent: Agent, start: str) -> None:
    """A server started with & holds the output open: the answer must come, and the server go."""
    mark = f"{1000 + os.getpid()}.25"
    assert agent.shell(f"{start.format(mark)} echo done")["stdout"] == "done\n"
    assert not [one for one in agent.children() if mark in one.cmdline()]


def test_what_python_has_started_lives_as_long_as_python(agent: Agent) -> None:
    """A server that one run starts must be there for the next, and not for ever."""
    agent.run("import subprocess\nserver = subprocess.Popen(['sleep', '1000.75'])")
    agent.shell("true")
    (started,) = [one for one in agent.children() if "1000.75" in one.cmdline()]
    agent.run("import os; os._exit(0)")
    assert not psutil.pid_exists(started.pid)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param("import os; os._exit(7)", "Python ended", id="exits"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "Python ended", id="crashes"),
        pytest.param("import os; os.closerange(3, 1024)", "Python ended", id="closes-all"),
        pytest.param("import os; os.close(1)", "closed its output", id="closes-its-output"),
        pytest.param(
            "import os\nfor fd in range(3, 1024):\n  try: os.write(fd, b'{}\\n')\n"
            "  except OSError: pass",
            "made no sense",
            id="writes-to-the-agent",
        ),
        pytest.param(
            "import os\nfor fd in range(3, 1024):\n  try: os.write(fd, b'x' * 99999)\n"
            "  except OSError: pass\nwhile True: pass",
            "made no sense",
            id="floods-the-agent",
        ),
    ],
)
def test_code_that_breaks_python_gets_a_new_one(agent: Agent, code: str, said: str) -> None:
    """A broken interpreter must be told of and replaced, not be asked again and again."""
    answer = agent.run(code)
    assert answer["restarted"]
    assert said in answer["stderr"]
    assert agent.run("1 + 1")["stdout"] == "2\n"


def test_python_that_ended_between_runs_is_told_of(agent: Agent) -> None:
    """Else variables would be missing without a word."""
    agent.run("import os, threading\nthreading.Timer(0.05, os._exit, [0]).start()")
    until(lambda: not [one for one in agent.children() if one.status() != psutil.STATUS_ZOMBIE])
    answer = agent.run("1 + 1")
    assert answer["stdout"] == "2\n"
    assert answer["restarted"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("python", "open('begun', 'w').close()\nwhile True: pass", id="python"),
        pytest.param("shell", "touch begun; exec sleep 1000", id="shell"),
    ],
)
def test_a_run_ends_when_its_caller_hangs_up(agent: Agent, language: str, code: str) -> None:
    """A turn that was cancelled would hold up the session's next ones, for ten minutes."""
    agent.run("x = 1")
    agent.shell("rm -f begun")
    body = json.dumps({"language": language, "code": code, "timeoutSeconds": 300})
    connection = SocketConnection(agent.socket)
    connection.request("POST", "/v1/run", body)
    until(lambda: (agent.workspace / "begun").exists())
    connection.close()
    answer = agent.run("'x' in globals()", timeoutSeconds=30)
    assert answer["stdout"] == f"{language == 'shell'}\n"
    # what was lost is told to whoever comes next
    assert answer.get("restarted", False) == (language == "python")


def test_runs_take_turns(agent: Agent) -> None:
    """Two tools called at once must not mix their output, nor hang each other."""
    agent.shell("mkfifo gate; rm -f begun")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(agent.shell, "touch begun; cat gate")
        until(lambda: (agent.workspace / "begun").exists())
        status, refused = agent.call("/v1/run", language="python", code="1", timeoutSeconds=0.05)
        assert (status, refused["code"]) == (409, "busy")
        second = pool.submit(agent.run, "'second'")
        assert agent.send("GET", "/healthz", "") == (200, {"ok": True})
        (agent.workspace / "gate").write_text("first")
        assert first.result()["stdout"] == "first"
        assert second.result()["stdout"] == "'second'\n"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("../escaped", "outside", id="up"),
        pytest.param("a/../../escaped", "outside", id="up-again"),
        pytest.param("/etc/passwd", "outside", id="absolute"),
        pytest.param("link", "outside", id="link-to-a-file"),
        pytest.param("out/escaped", "outside", id="link-to-a-folder"),
        pytest.param("pipe", "not_a_file", id="pipe"),
        pytest.param("folder", "not_a_file", id="folder"),
        pytest.param(".", "not_a_file", id="itself"),
        pytest.param("", "invalid", id="nothing"),
        pytest.param("a\0b", "invalid", id="nul"),
        pytest.param("x" * 300, "failed", id="long"),
    ],
)
def test_no_path_leads_out_of_the_workspace(agent: Agent, path: str, code: str) -> None:
    """Read and write are for files of the session, whatever the model or a document asks for."""
    outside = agent.workspace.parent
    agent.shell(
        f"ln -sf {outside}/secret link; ln -sfn {outside} out; [ -p pipe ] || mkfifo pipe;"
        "mkdir -p folder"
    )
    (outside / "secret").write_text("secret")
    for call, body in (("/v1/read", {}), ("/v1/write", {"content": "x"})):
        status, answer = agent.call(call, path=path, **body)
        assert (status, answer["code"]) == (400, code)
    assert (outside / "secret").read_text() == "secret"
    assert not (outside / "escaped").exists()


def test_files_of_any_kind_come_back_as_they_went(agent: Agent) -> None:
    """A picture or a text in any script must survive the way through JSON."""
    content = bytes(range(256)) * 4096
    assert len(content) == FILE
    sent = base64.b64encode(content).decode()
    assert agent.call("/v1/write", path="b", content=sent, encoding="base64") == (
        200,
        {"size": FILE},
    )
    _, answer = agent.call("/v1/read", path=str(agent.workspace / "b"))
    assert (answer["encoding"], answer["size"], answer["truncated"]) == ("base64", FILE, False)
    assert base64.b64decode(answer["content"]) == content
    text = "日本語 — ελληνικά\n" * 50
    agent.call("/v1/write", path="t", content=text)
    read = ""
    while len(read) < len(text):  # in pieces whose ends fall into characters
        _, answer = agent.call("/v1/read", path="t", offset=len(read.encode()), limit=100)
        assert answer["encoding"] == "utf-8"
        read += answer["content"]
    assert read == text
    assert not answer["truncated"]


def test_what_cannot_be_is_refused_in_a_sentence(agent: Agent) -> None:
    """The model reads these and does better; a hang or a closed connection teaches it nothing."""
    large = base64.b64encode(b"x" * (FILE + 1)).decode()
    refused = [
        agent.call("/v1/read", path="none"),
        agent.call("/v1/write", path="l", content=large, encoding="base64"),
        agent.call("/v1/write", path="l", content="?", encoding="base64"),
        agent.call("/v1/write", path="l", content="\ud800"),
        agent.call("/v1/run", language="perl", code="1"),
        agent.call("/v1/run", language="python", code="1", timeoutSeconds=10**6),
        agent.call("/v1/run", language="python", code="1", timeoutSeconds=float("nan")),
        agent.call("/v1/run", language="shell", code="#" * 200_000),
        agent.send("POST", "/v1/run", "[" * 100_000),
        agent.send("POST", "/v1/run", "[]"),
        agent.call("/v1/none"),
    ]
    assert [status for status, _ in refused] == [404, 413, *[400] * 5, 413, 400, 400, 404]
    assert all(answer["error"].endswith(".") and answer["code"] for _, answer in refused)
    connection = SocketConnection(agent.socket)
    connection.putrequest("POST", "/v1/write")
    connection.putheader("Content-Length", str(10**9))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_bytes_that_are_no_text_do_not_break_the_answer(agent: Agent) -> None:
    """Neither JSON nor the database takes any byte; the rest of the output must still be seen."""
    assert agent.shell(r"printf 'a\377b\000c'")["stdout"] == "a\ufffdb\ufffdc"


def test_code_sees_nothing_of_the_agent_s_environment(agent: Agent) -> None:
    """Whoever starts the agent may have secrets there."""
    assert "PAL_" not in agent.shell("env")["stdout"]
    assert "do not tell" not in agent.run("import os; dict(os.environ)")["stdout"]


def test_sigterm_ends_all_that_runs(tmp_path: Path) -> None:
    """A VM that is ended must not leave what it ran on the host."""
    agent = Agent(tmp_path)
    until(lambda: os.path.exists(agent.socket))
    agent.run("import subprocess\np = subprocess.Popen(['setsid', 'sleep', '1000'])")

    def hang() -> None:
        with suppress(http.client.HTTPException, OSError):  # or a last answer comes
            agent.shell("touch begun; sleep 1000")

    hanging = threading.Thread(target=hang)
    hanging.start()
    until(lambda: (agent.workspace / "begun").exists())
    running = agent.children()
    assert len(running) >= 4
    assert agent.stop() == 0
    hanging.join()
    assert not [one for one in running if one.is_running() and one.status() != "zombie"]


def test_the_hooks_of_a_microvm_image(tmp_path: Path) -> None:
    """VMs start from one snapshot: what validation left in Python would be shared by all."""
    port, hooks = free_port(), free_port()
    process = subprocess.Popen(
        [sys.executable, "-I", str(AGENT)],
        env={
            "PATH": os.environ["PATH"],
            "PAL_AGENT_PORT": str(port),
            "PAL_AGENT_HOOKS_PORT": str(hooks),
            "PAL_AGENT_WORKSPACE": str(tmp_path),
        },
    )

    def answers(at: int, method: str, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", at, timeout=50)
        try:
            connection.request(method, path, json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens)
        assert answers(port, "GET", "/healthz") == (200, {"ok": True})
        prefix = "/aws/lambda-microvms/runtime/v1/"
        for hook in ("ready", "validate", "run", "resume"):
            assert answers(hooks, "POST", prefix + hook, microvmId="m")[0] == 200, hook
            assert not psutil.Process(process.pid).children() or hook == "resume"
            if hook == "run":
                answers(port, "POST", "/v1/run", language="python", code="x = 5")
        _, kept = answers(port, "POST", "/v1/run", language="python", code="x")
        assert kept["stdout"] == "5\n"
        assert answers(hooks, "POST", prefix + "none")[0] == 404
        assert answers(port, "POST", prefix + "run")[0] == 404
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_agent_is_written_for_the_python_of_its_image() -> None:
    """An image with an older Python would start an agent that cannot be read."""
    for file in AGENT.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))
