"""The real agent as what runs in a VM of the fake, started as the image's Dockerfile says."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.postgres import free_port

MICROVM = Path(__file__).parents[2] / "infra" / "microvm"
_HOOKS = "/aws/lambda-microvms/runtime/v1"


def dockerfile() -> tuple[dict[str, str], list[str]]:
    """The environment and the command of the image."""
    text = (MICROVM / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (env,) = re.findall(r"^ENV (.+)$", text, re.M)
    (command,) = re.findall(r"^CMD (.+)$", text, re.M)
    return dict(pair.split("=", 1) for pair in shlex.split(env)), json.loads(command)


class AgentGuest:
    """A process of the agent in a workspace of its own; its image has been built before."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="microvm-")
        self._api, self._hooks = free_port(), free_port()
        env, command = dockerfile()
        python, *flags, agent = command
        assert python.startswith("python3")
        assert agent == "/opt/palimpsest/agent"
        env |= {
            "PAL_AGENT_PORT": str(self._api),
            "PAL_AGENT_HOOKS_PORT": str(self._hooks),
            "PAL_AGENT_WORKSPACE": self._folder.name,
            # the user of the tests has other processes than the agent's
            "PAL_AGENT_OWN_USER": "",
            "PATH": os.environ["PATH"],
        }
        self._process = subprocess.Popen([sys.executable, *flags, str(MICROVM / "agent")], env=env)
        self._started = False

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if not self._started:
            await self.hook("ready")
            await self.hook("run")
            self._started = True
        return await self._send(method, self._api, path, body)

    async def hook(self, name: str) -> None:
        """Call it as AWS does: again while the agent is not there, or says that it is not ready."""
        for _ in range(200):
            try:
                status, said = await self._send("POST", self._hooks, f"{_HOOKS}/{name}", b"")
            except aiohttp.ClientConnectionError:
                status = 503
            if status == 200:
                return
            assert status == 503, said
            assert self._process.poll() is None, "the agent has ended"
            await asyncio.sleep(0.05)
        raise AssertionError(f"the agent is not done with {name}")

    async def close(self) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, 10)
        self._folder.cleanup()

    async def _send(self, method: str, port: int, path: str, body: bytes) -> tuple[int, bytes]:
        headers: dict[str, Any] = {"Content-Type": "application/json"} if body else {}
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                method, f"http://127.0.0.1:{port}{path}", data=body, headers=headers
            ) as response,
        ):
            return response.status, await response.read()
