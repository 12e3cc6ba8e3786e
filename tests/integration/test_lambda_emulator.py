"""The Lambda loop under AWS's own emulator.

It has two lives: the plain one does not report trailers; told of a concurrency it is that of
managed instances, which does, but starts nothing except /var/runtime/bootstrap, so it gets a /var
of its own, laid out as Lambda's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.emulator import ROOT, emulator
from tests.support.skipping import skip_except_in_ci

LOOP = "-m chalicelib.stream.runtime tests.fakes.stream_handler:handler"
PLAIN = 'exec "$RIE" $ADDRESSES "$PYTHON" $LOOP'
MANAGED = """
set -e
mount -t tmpfs tmpfs "$STAGE"
mkdir "$STAGE/task" "$STAGE/runtime"
cat > "$STAGE/runtime/bootstrap" <<'END'
#!/bin/sh
# it runs as a user of its own, to whom root's folders, and a Python in them, are closed
cd /var/task
exec "$(command -v "$PYTHON" || command -v python3.11 || command -v python3)" $LOOP
END
chmod +x "$STAGE/runtime/bootstrap"
mount --bind "$ROOT" "$STAGE/task"
mount --rbind "$STAGE" /var
export AWS_LAMBDA_MAX_CONCURRENCY=1
exec /var/task/.cache/rie/aws-lambda-rie $ADDRESSES /var/runtime/bootstrap handler
"""


def environment(**more: str) -> dict[str, str]:
    """What the scripts are told."""
    return {**os.environ, "PYTHON": sys.executable, "LOOP": LOOP, "ROOT": str(ROOT), **more}


def events_in(content: bytes) -> tuple[int, str]:
    """The process that answered, and its last event, out of a whole answer."""
    prelude, body = content.split(bytes(8))
    assert json.loads(prelude) == {
        "statusCode": 201,
        "headers": {"content-type": "text/event-stream; charset=utf-8"},
        "cookies": ["a=1", "b=2"],
    }
    first, *last = body.decode().removesuffix("\n\n").split("\n\n")
    return int(first.removeprefix("data: pid ")), "".join(last)


def test_emulator_takes_answers_from_one_process() -> None:
    """What Lambda's own code makes of our answers would be known only after a deployment."""
    with emulator(PLAIN, environment()) as rie:
        pid, last = events_in(rie.invoke({"want": "events"}).content)
        assert last == "data: finished 0, trace none, time left True"
        assert events_in(rie.invoke({"want": "break"}).content) == (pid, "")
        assert events_in(rie.invoke({"want": "events"}).content) == (
            pid,
            "data: finished 2, trace none, time left True",
        )
        assert b'"code": "internal"' in rie.invoke({"want": "refuse"}).content
        assert events_in(rie.invoke({"want": "events"}).content)[0] == pid


def test_emulator_reads_the_trailers_of_a_cut_answer(tmp_path: Path) -> None:
    """A reply that broke off would pass for a whole one, on Lambda only."""
    namespace = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount"]
    probe = [*namespace, "mount", "-t", "tmpfs", "tmpfs", "/var"]
    if subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode != 0:
        skip_except_in_ci("this machine lets nobody mount in a namespace")
    with emulator(MANAGED, environment(STAGE=str(tmp_path)), prefix=namespace) as rie:
        pid, last = events_in(rie.invoke({"want": "events"}).content)
        assert last == "data: finished 0, trace Root=1-2-3, time left True"
        cut = rie.invoke({"want": "break"})
        assert cut.headers["Error-Type"] == "Function.BackendGone"
        assert json.loads(cut.content) == {
            "errorMessage": "The answer broke off in the middle; what came of it is void.",
            "errorType": "BackendGone",
            "stackTrace": [],
        }
        again = rie.invoke({"want": "events"})
        assert again.headers["Lambda-Runtime-Function-Response-Mode"] == "streaming"
        assert events_in(again.content) == (
            pid,
            "data: finished 2, trace Root=1-2-3, time left True",
        )
