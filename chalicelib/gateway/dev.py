"""`./scripts/dev`: everything on a laptop, from nothing, in one process."""

import asyncio
import base64
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from app import app
from chalicelib import config, telemetry
from chalicelib.auth import SCOPES, Authenticator, create_key, create_tenant, list_tenants, new_key
from chalicelib.config import Secret, Settings, SettingsError
from chalicelib.db import Database
from chalicelib.errors import Unauthorized
from chalicelib.gateway.postgres import Logins, NotReady, embedded, prepare
from chalicelib.gateway.server import PortTaken, bind, run
from chalicelib.vault import KEY_BYTES


def main() -> int:
    """Serve until Ctrl-C; 1 with a sentence when it cannot start."""
    try:
        ours = config.load_settings(os.environ)
        telemetry.configure(ours)
        with ExitStack() as stack:
            data_dir = Path(ours.data_dir)
            stack.enter_context(_lock(data_dir))
            sock = stack.enter_context(bind(ours.host, ours.port))
            master = ours.database_url or stack.enter_context(embedded(data_dir))
            logins = asyncio.run(prepare(master))
            key = asyncio.run(_first_key(logins, ours, data_dir))
            ours = _with(ours, logins, _vault_key(ours, data_dir))
            run(app, ours, sock, lambda: _tell(ours, key))
    except (SettingsError, PortTaken, NotReady) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


def _with(ours: Settings, logins: Logins, vault_key: Secret) -> Settings:
    # a database that we prepared as its master was reached directly, so LISTEN works on it
    listen = ours.database_listen_url or (logins.app if logins.owner else "")
    ready = replace(
        ours,
        database_url=Secret(logins.app),
        database_listen_url=Secret(listen),
        vault_key=vault_key,
        isolation=ours.isolation if os.environ.get("PAL_ISOLATION") else "local",
    )
    config.use(ready)
    return ready


def _vault_key(ours: Settings, data_dir: Path) -> Secret:
    """PAL_VAULT_KEY; without it and without KMS one that is made once and kept beside the data."""
    if ours.vault_key or ours.kms_key:
        return Secret(ours.vault_key)
    return _kept(data_dir / "vault-key", lambda: base64.b64encode(os.urandom(KEY_BYTES)).decode())


def _kept(path: Path, make: Callable[[], str]) -> Secret:
    """The text of a file that only its owner may read, made if there is none."""
    text = path.read_text().strip() if path.exists() else ""
    if not text:
        text = make()
        path.touch(mode=0o600)
        path.write_text(text + "\n")
    return Secret(text)


@contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise NotReady(
                f"Another ./scripts/dev uses {data_dir}; stop it or set PAL_DATA_DIR."
            ) from exc
        yield


async def _first_key(logins: Logins, ours: Settings, data_dir: Path) -> str:
    """The laptop's key: PAL_DEV_KEY, else one that is made once and kept beside the data."""
    kept = data_dir / "dev-key"
    key = str(ours.dev_key or _kept(kept, new_key))
    if logins.owner is None:
        return key  # pal_app makes no keys: whoever prepared the database has made one
    db = Database(logins.owner, size=1)
    await db.open()
    try:
        tenants = {one["name"]: one["id"] for one in await list_tenants(db)}
        tenant_id = tenants.get("default") or await create_tenant(db, name="default")
        await create_key(db, tenant_id=tenant_id, name="dev", scopes=SCOPES, key=key)
        await Authenticator(db).bearer(f"Bearer {key}")
    except Unauthorized as exc:
        raise NotReady(f"The key in {kept} (or PAL_DEV_KEY) is revoked; use another.") from exc
    finally:
        await db.close()
    return key


def _tell(ours: Settings, key: str) -> None:
    url = f"http://{ours.host}:{ours.port}"
    chain = ", ".join(f"{kind}:{model}" for kind, model in ours.providers) or "offline stand-in"
    head = f"-H 'Authorization: Bearer {key}' -H 'Content-Type: application/json'"
    session = f"$(curl -s {url}/v1/sessions {head} -d '{{}}' | grep -o 'sess_[a-z0-9]*')"
    session = session.replace("{}", '{"agentName": "guide"}')
    lines = [
        f"ready {url} key={key}",
        f"# answers come from: {chain}. Try:",
        f"curl -sN {url}/v1/sessions/{session}/messages {head}"
        " -H 'Accept: text/event-stream' -d '{\"content\": \"Hello!\"}'",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
