"""Sandboxes of the local driver: what they keep apart, and that none is left."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from chalicelib.isolation.base import AgentRefused, Machine, MachineGone, MachineUnavailable
from chalicelib.isolation.local import LocalDriver
from tests.support.sandboxes import (
    ROOT,
    Sandboxes,
    command_line,
    elsewhere,
    process_with_driver,
    running,
)
from tests.support.skipping import skip_except_in_ci
from tests.support.waiting import until

SECRET = "a-secret-of-the-gateway"
ALL = ("user", "mount", "pid", "network", "ipc", "hostname")


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[Sandboxes]:
    """With a secret in the environment and one in the data folder."""
    os.environ["PAL_TEST_SECRET"] = SECRET
    with tempfile.TemporaryDirectory(prefix="pal-data-") as folder:
        made = Sandboxes(Path(folder))
        (made.data / "vault-key").write_text(SECRET)
        (made.data / "vault-key").chmod(0o644)
        yield made
        asyncio.run(made.driver.close())
        assert made.listed() == []
        assert [one.name for one in made.data.glob("vms/[!.]*")] == []
    del os.environ["PAL_TEST_SECRET"]


@pytest.fixture(scope="module")
def machine(sandboxes: Sandboxes) -> Machine:
    """One for those tests that leave it as it was."""
    return sandboxes.start("vm_shared")


@pytest.fixture
def apart(sandboxes: Sandboxes, machine: Machine) -> Machine:
    """The same, where the kernel gives us namespaces."""
    if not sandboxes.value(machine, "import os\nvalue = os.getcwd() == '/workspace'"):
        skip_except_in_ci("this kernel refuses namespaces to us")
    return machine


def test_code_reaches_no_network(sandboxes: Sandboxes, apart: Machine) -> None:
    """Else anyone's code would speak to the database beside it, and from this address to anyone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
        code = f"""
import socket
def tried(where):
    try:
        socket.create_connection(where, timeout=2)
    except OSError:
        return False
    return True
inner = socket.create_server(('127.0.0.1', 0))
value = [tried({where}), tried(('192.0.2.1', 80)), tried(inner.getsockname())]
"""
        assert sandboxes.value(apart, code) == [False, False, True]


def test_code_reaches_the_network_where_that_was_asked_for(sandboxes: Sandboxes) -> None:
    """An agent that fetches packages or data is no use without, and its owner may want it."""
    asked = replace(sandboxes.settings, microvm_network=True)

    async def reach(port: int) -> str:
        driver = LocalDriver(asked)
        machine = await driver.start(token="vm_network", idle=60)
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port})).recv(9)"
        body = {"language": "python", "code": code}
        answer = await driver.ask(machine, "/v1/run", body, timeout=50)
        await driver.close()
        return str(answer["stdout"])

    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=_greet, args=(server,))
        greeter.start()
        assert asyncio.run(reach(server.getsockname()[1])) == "b'hello'\n"
        greeter.join()


def test_code_sees_neither_secrets_nor_the_disk(sandboxes: Sandboxes, apart: Machine) -> None:
    """Keys in the environment and files are what a prompt injection is after."""
    paths = [sandboxes.data / "vault-key", ROOT / "README.md", Path("/etc/shadow"), Path.home()]
    code = f"""
import glob, os
seen = str(dict(os.environ))
for file in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):
    try:
        seen += open(file, errors='replace').read()
    except OSError:
        pass
readable = [path for path in {[str(path) for path in paths]} if os.access(path, os.R_OK)
    and (os.path.isfile(path) or set(os.listdir(path)) - {{'.pyenv', '.local'}})]
folders = glob.glob('/*') + glob.glob('/[!p]*/*') + glob.glob('/usr/*/*')
written = [path for path in folders if os.path.isdir(path) and os.access(path, os.W_OK)
    and not os.path.islink(path)]
value = [{SECRET!r} in seen, readable, sorted(written)]
"""
    assert sandboxes.value(apart, code) == [False, [], ["/dev/shm", "/tmp", "/workspace"]]


def test_code_has_no_privilege(sandboxes: Sandboxes, apart: Machine) -> None:
    """As root, or with a way to become it, it would undo all the rest."""
    code = """
import ctypes, os, socket
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
libc = ctypes.CDLL(None, use_errno=True)
def unshare():
    if libc.unshare(0x10000000) == -1:
        raise OSError(ctypes.get_errno(), '')
def tried(what):
    try:
        what()
    except OSError as exc:
        return exc.errno
value = [os.getuid() != 0 and os.geteuid() != 0, os.getgroups() in ([], [os.getgid()]),
    int(status['CapEff'], 16), int(status['CapBnd'], 16), status['NoNewPrivs'].strip(),
    os.access('/proc/1/mem', os.R_OK),
    tried(unshare),
    tried(lambda: socket.socket(socket.AF_VSOCK)), tried(socket.socket)]
"""
    assert sandboxes.value(apart, code) == [True, True, 0, 0, "1", False, 1, 97, None]


def test_code_holds_no_memory_that_is_not_counted(sandboxes: Sandboxes, apart: Machine) -> None:
    """What belongs to no process outlives the limit of each, and fills the host's memory."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
value = []
for make in (lambda: os.memfd_create('x'), lambda: libc.shmget(0, 1 << 20, 0o1600),
             lambda: libc.msgget(0, 0o1600), lambda: libc.semget(0, 9, 0o1600)):
    try:
        value.append(make() < 0)
    except OSError:
        value.append(True)
"""
    assert sandboxes.value(apart, code) == [True] * 4


def test_sandboxes_see_nothing_of_each_other(sandboxes: Sandboxes, apart: Machine) -> None:
    """Two sessions, maybe of two tenants, would read each other's files and processes."""
    other = sandboxes.start("vm_other")
    sandboxes.run(other, "import subprocess\np = subprocess.Popen(['sleep', '1000.5'])")
    sandboxes.run(other, "open('/tmp/theirs', 'w').write('x')\nopen('theirs', 'w').write('x')")
    code = f"""
import glob, os
found = [path for path in ('theirs', '/tmp/theirs', {str(sandboxes.data / "vms")!r},
    {other.endpoint!r}) if os.path.exists(path)]
running = [open(file).read() for file in glob.glob('/proc/[0-9]*/cmdline')]
value = [found, [line for line in running if '1000.5' in line], os.getuid()]
"""
    found, running, uid = sandboxes.value(apart, code)
    assert (found, running) == ([], [])
    if os.geteuid() == 0:
        assert uid != sandboxes.value(other, "import os\nvalue = os.getuid()")
    sandboxes.end(other)


def test_a_fork_bomb_stays_inside_and_ends(sandboxes: Sandboxes, apart: Machine) -> None:
    """A laptop's process table would be full in a second."""
    bomb = "import os, time\nwhile True:\n  try: os.fork(); os.setsid()\n  except OSError: pass"
    sandboxes.run(apart, f"cat > bomb.py <<'EOF'\n{bomb}\nEOF", "shell")
    answer = sandboxes.run(apart, "python3 bomb.py", "shell", seconds=0.5)
    assert answer["timedOut"]
    left = sandboxes.holder(apart.id).children(recursive=True)
    assert len([one for one in left if "bomb.py" in command_line(one)]) == 0
    assert sandboxes.run(apart, "1 + 1")["stdout"] == "2\n"


def test_one_token_is_one_sandbox(sandboxes: Sandboxes) -> None:
    """Two workers that start a session's VM at once must not split its state in two."""
    second = LocalDriver(sandboxes.settings)

    async def start_all() -> list[Machine]:
        drivers = [sandboxes.driver, second] * 3
        return await asyncio.gather(*(one.start(token="vm_one", idle=60) for one in drivers))

    machines = asyncio.run(start_all())
    assert len({repr(machine) for machine in machines}) == 1
    assert sandboxes.listed().count("vm_one") == 1
    sandboxes.run(machines[0], "x = 41")
    told = elsewhere(
        sandboxes.data,
        """
        machine = await driver.start(token="vm_one", idle=60)
        body = {"language": "python", "code": "x + 1"}
        print((await driver.ask(machine, "/v1/run", body, timeout=50))["stdout"])
        await driver.close()
        """,
    )
    assert told.split() == ["42"]
    assert sandboxes.run(machines[1], "x")["stdout"] == "41\n"
    sandboxes.end(machines[0])
    asyncio.run(second.close())


def test_an_ended_sandbox_leaves_nothing(sandboxes: Sandboxes) -> None:
    """A session's files must be gone from the disk, and its processes from the machine."""
    machine = sandboxes.start("vm_ended")
    sandboxes.run(machine, "import os; os.mkdir('shut'); open('shut/f', 'w'); os.chmod('shut', 0)")
    sandboxes.run(machine, "import subprocess\np = subprocess.Popen(['setsid', 'sleep', '1000'])")
    holder = sandboxes.holder(machine.id)
    processes = [holder, *holder.children(recursive=True)]
    assert len(processes) >= 4
    sandboxes.end(machine)
    sandboxes.end(machine)
    until(lambda: not running(processes))
    assert not (sandboxes.data / "vms" / machine.id).exists()
    assert machine.id not in sandboxes.listed()
    with pytest.raises(MachineGone) as gone:
        sandboxes.run(machine, "1")
    assert not gone.value.begun
    with pytest.raises(MachineGone):
        sandboxes.start("vm_ended")


def test_what_the_agent_says_becomes_the_driver_s_error(
    sandboxes: Sandboxes, machine: Machine
) -> None:
    """The model gets the agent's sentence; an operator's trouble is told apart from a VM's end."""

    async def ask(path: str, body: dict[str, Any], timeout: float = 50) -> None:
        await sandboxes.driver.ask(machine, path, body, timeout=timeout)

    with pytest.raises(AgentRefused, match=r"There is no file none\."):
        asyncio.run(ask("/v1/read", {"path": "none"}))
    slow = {"language": "shell", "code": "sleep 1000", "timeoutSeconds": 0.5}
    with pytest.raises(MachineUnavailable, match="in time"):
        asyncio.run(ask("/v1/run", slow, timeout=0.1))
    asyncio.run(sandboxes.driver.terminate("../vault-key"))
    assert (sandboxes.data / "vault-key").exists()


def test_a_sandbox_whose_agent_died_is_gone_for_whoever_asks(sandboxes: Sandboxes) -> None:
    """A run that ends its own VM must be told as such, as it may have begun."""
    machine = sandboxes.start("vm_died")
    inside = sandboxes.holder(machine.id).children()
    # else it may be over, and told, before the agent heeds the signal
    end = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(20)"
    with pytest.raises(MachineGone) as gone:
        sandboxes.run(machine, end)
    assert gone.value.begun
    until(lambda: not running(inside))
    until(lambda: "vm_died" not in sandboxes.listed())
    assert not (sandboxes.data / "vms" / "vm_died").exists()


def test_nothing_outlives_a_gateway_that_is_killed(sandboxes: Sandboxes) -> None:
    """Each crash of a gateway would otherwise leave sandboxes that nobody ends."""
    gateway = process_with_driver(
        sandboxes.data,
        """
        await driver.start(token="vm_orphan", idle=60)
        print("started", flush=True)
        await asyncio.sleep(1000)
        """,
    )
    assert gateway.stdout is not None
    assert gateway.stdout.readline() == "started\n"
    assert "vm_orphan" in sandboxes.listed()
    holder = sandboxes.holder("vm_orphan")
    processes = [holder, *holder.children(recursive=True)]
    gateway.kill()
    gateway.communicate()
    until(lambda: not running(processes))
    assert not (sandboxes.data / "vms" / "vm_orphan").exists()


def test_a_holder_that_is_killed_takes_its_sandbox_along(sandboxes: Sandboxes) -> None:
    """The system may pick it when memory runs out; the next look at the folder tidies up."""
    machine = sandboxes.start("vm_unheld")
    holder = sandboxes.holder(machine.id)
    inside = holder.children(recursive=True)
    holder.kill()
    until(lambda: not running(inside))
    assert machine.id not in sandboxes.listed()
    assert not (sandboxes.data / "vms" / machine.id).exists()


@pytest.mark.parametrize(
    ("rights", "refused"),
    [
        pytest.param(False, (), id="user"),
        pytest.param(False, ALL, id="user-without-namespaces"),
        pytest.param(True, ALL, id="root-without-namespaces"),
    ],
)
def test_there_are_sandboxes_with_few_rights_too(rights: bool, refused: tuple[str, ...]) -> None:
    """Nobody should run a gateway as root for this; and a container refuses namespaces."""
    if rights and os.geteuid() != 0:
        skip_except_in_ci("only root can try what root gets")
    python = Path("/usr/bin/python3") if os.geteuid() == 0 else Path(sys.executable)
    if not python.exists():
        skip_except_in_ci("there is no Python that every user may run")
    with (
        tempfile.TemporaryDirectory(prefix="pal-user-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        shutil.copytree(ROOT / "chalicelib", f"{folder}/code/chalicelib")
        shutil.copytree(ROOT / "infra/microvm/agent", f"{folder}/code/infra/microvm/agent")
        data = Path(folder) / "data"
        data.mkdir()
        for path in (folder, str(data)):
            os.chmod(path, 0o755)
        user = 65533 if os.geteuid() == 0 and not rights else None
        key, door = data / "vault-key", data / "door"
        key.write_text("secret")
        listener.bind(str(door))
        listener.listen()
        for path in (data, key, door):
            os.chmod(path, 0o755 if path == data else 0o600)
            if user is not None:
                os.chown(path, user, user)
        told = elsewhere(
            data,
            """
            machine = await driver.start(token="vm_user", idle=60)
            async def run(code, language="python", seconds=5):
                body = {"language": language, "code": code, "timeoutSeconds": seconds}
                return (await driver.ask(machine, "/v1/run", body, timeout=50))["stdout"].strip()
            await run("import subprocess; p = subprocess.Popen(['setsid', 'sleep', '1000.125'])")
            bomb = "import os\\nwhile True:\\n try: os.fork()\\n except OSError: pass"
            await run(f"import os; open('bomb.py', 'w').write({bomb!r})")
            await run("open('f', 'w').write('kept'); x = 1")
            print(await run("cat f; echo; ls -d /proc/[0-9]* | wc -l", "shell"))
            print(await run("import os; os.path.exists('/etc/passwd') and 'x' in globals()"))
            reach = "import socket; socket.create_connection(('127.0.0.1', %PORT%), timeout=2)"
            print(await run(f"try: {reach}\\nexcept OSError: print('kept in')"))
            reach = (
                f"open('/proc/{os.getpid()}/environ', 'rb').read()",
                f"open('/proc/{os.getppid()}/environ', 'rb').read()",
                f"os.kill({os.getpid()}, 0)",
                f"open({os.path.abspath('data/vault-key')!r}).read()",
                f"open({os.path.join('%ROOT%', 'vault-key')!r}, 'w')",
                f"socket.socket(socket.AF_UNIX).connect({os.path.abspath('data/door')!r})",
            )
            for one in reach:
                tried = f"try: {one}; print('out')\\nexcept OSError: print('in')"
                print(await run(f"import socket\\n{tried}"))
            print(await run("python3 bomb.py", "shell", 1), await run("1 + 1"))
            stop = "import os, subprocess, time; subprocess.Popen(['python3', 'bomb.py'])"
            stop += "; time.sleep(0.2); os.kill(os.getppid(), 19)"
            body = {"language": "python", "code": stop}
            try:
                await driver.ask(machine, "/v1/run", body, timeout=2)
            except MachineUnavailable:
                pass  # the agent itself is stopped, where it is not the first of its processes
            await driver.terminate(machine.id)
            print(await driver.list(), sorted(os.listdir("data/vms")))
            """.replace("%PORT%", str(server.getsockname()[1])).replace("%ROOT%", folder),
            python=python,
            checkout=f"{folder}/code",
            refused=refused,
            user=user,
        ).splitlines()
        assert told[0] == "kept"
        if not refused and int(told[1]) > 9:
            skip_except_in_ci("this kernel refuses namespaces to a user without rights")
        assert told[2:4] == ["True", "kept in"]
        # not even what is its own user's: this service's secrets, its files, its database's socket
        assert told[4:10] == ["in"] * 6
        assert told[10] == " 2"
        assert told[-1] == "[] ['.ended', '.lock']"
    left = [command_line(one) for one in running(list(psutil.process_iter()))]
    assert not [one for one in left if "1000.125" in one or "bomb.py" in one]


def _greet(server: socket.socket) -> None:
    server.settimeout(30)
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello")
