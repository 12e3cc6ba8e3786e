"""The vault with a local key: what it seals opens in its own place only, and never otherwise."""

import asyncio
import base64
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from chalicelib.config import Secret, Settings, SettingsError
from chalicelib.errors import Unavailable
from chalicelib.vault import CannotOpen, Vault

KEY = base64.b64encode(bytes(range(32))).decode()
SECRET = "sk-hunter2-„ein Schlüssel“"
PLACE = {"tenant_id": "ten_a", "kind": "tool", "name": "weather"}


def vault(key: str = KEY) -> Vault:
    return Vault(Settings(vault_key=Secret(key)))


def seal(secret: str = SECRET, **place: str) -> bytes:
    return asyncio.run(vault().seal(secret, **{**PLACE, **place}))


def open_(sealed: bytes, by: Vault | None = None, **place: str) -> Secret:
    return asyncio.run((by or vault()).open(sealed, **{**PLACE, **place}))


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("xyzzy", id="short"),
        pytest.param(SECRET, id="unicode"),
        pytest.param("\U0001f469" * 8_000, id="long"),
    ],
)
def test_what_is_sealed_opens_again(secret: str) -> None:
    """Lost if red: tenants' own keys."""
    sealed = seal(secret)
    opened = open_(sealed)
    assert opened == secret
    assert repr(opened) == "Secret('**')", "it would show in the first traceback"
    assert secret.encode() not in sealed
    assert len(secret.encode()) <= vault().longest


def test_the_same_secret_is_never_sealed_alike() -> None:
    """Lost if red: who reads the table sees which tenants share a key, or that none was changed."""
    assert len({seal() for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"tenant_id": "ten_b"}, id="tenant"),
        pytest.param({"kind": "provider"}, id="kind"),
        pytest.param({"name": "mail"}, id="name"),
    ],
)
def test_a_secret_opens_in_its_own_place_only(place: dict[str, str]) -> None:
    """Lost if red: one tenant's key, to the other whose row it was copied to."""
    with pytest.raises(CannotOpen):
        open_(seal(), **place)


def test_a_changed_byte_opens_nothing() -> None:
    """Lost if red: secrets that someone with a hand on the table can alter."""
    sealed = seal("short")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        # as one that KMS sealed it would be asked of KMS: that is another key altogether
        if changed[0] != 2:
            with pytest.raises(CannotOpen):
                open_(bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            open_(sealed[:length])


def test_another_key_opens_nothing() -> None:
    """Lost if red: secrets, to whoever has any key."""
    other = vault(base64.b64encode(os.urandom(32)).decode())
    for by, reason in ((other, "not the key"), (Vault(Settings()), "not set")):
        with pytest.raises(CannotOpen, match=f"PAL_VAULT_KEY is {reason}") as caught:
            open_(seal(), by)
        assert SECRET not in str(caught.value)
    with pytest.raises(CannotOpen, match="newer version"):
        open_(b"\x09" + seal()[1:])


def test_without_a_key_nothing_is_sealed() -> None:
    """Lost if red: secrets in the clear, where someone forgot to set a variable."""
    with pytest.raises(Unavailable, match="PAL_VAULT_KEY") as caught:
        asyncio.run(Vault(Settings()).seal(SECRET, **PLACE))
    assert (caught.value.status, caught.value.code) == (503, "vault_unavailable")
    assert caught.value.headers["Retry-After"]
    assert "PAL_KMS_KEY" in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("hunter2", id="no-base64"),
        pytest.param(base64.b64encode(b"hunter2").decode(), id="too-short"),
        pytest.param(base64.b64encode(bytes(33)).decode(), id="too-long"),
        pytest.param(KEY[:-1], id="no-padding"),
        pytest.param("schlüssel" * 5, id="no-ascii"),
    ],
)
def test_a_wrong_key_is_told_at_the_start_and_not_shown(key: str) -> None:
    """Lost if red: a process that seals with what nobody meant, or its key in the log."""
    with pytest.raises(SettingsError, match=r"^PAL_VAULT_KEY must be 32 bytes in base64\.$") as got:
        vault(key)
    assert key not in "".join(traceback.format_exception(got.value))


def test_a_vault_does_not_print_its_key() -> None:
    """Lost if red: the key of all keys, in a log line."""
    made: Any = vault()
    assert KEY not in f"{made!r} {made}"


def test_where_cryptography_is_missing_kms_is_named(root: Path) -> None:
    """Lost if red: what to set on Lambda, where that package is not."""
    program = (
        "import asyncio, sys; sys.modules['cryptography'] = None\n"
        "from chalicelib.config import Secret, Settings\n"
        "from chalicelib.errors import Unavailable\n"
        "from chalicelib.vault import Vault\n"
        "made = Vault(Settings(vault_key=Secret(sys.argv[1])))\n"
        "place = dict(tenant_id='t', kind='tool', name='n')\n"
        "for work in (made.seal('s', **place), made.open(b'\\x01' + bytes(40), **place)):\n"
        "    try: asyncio.run(work)\n"
        "    except Unavailable as exc: print(exc.code, exc.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, KEY], cwd=root, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(one.startswith("vault_unavailable") and "PAL_KMS_KEY" in one for one in lines)
