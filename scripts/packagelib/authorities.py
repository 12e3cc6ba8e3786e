"""RDS's own certificate authorities, by which bootstrap and migrate know the cluster."""

import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from .errors import PackagingError

# a region of China has a host of its own: PAL_RDS_CA names the file there
_HOSTS = {"us-gov-": "https://truststore.pki.us-gov-west-1.rds.amazonaws.com"}
_HOST = "https://truststore.pki.rds.amazonaws.com"
_CACHE = Path(__file__).parents[2] / ".cache/rds"


def rds_authorities(region: str, *, cache: Path = _CACHE, host: str | None = None) -> Path:
    """The file of a region's authorities: the one that PAL_RDS_CA names, else fetched from AWS."""
    named = os.environ.get("PAL_RDS_CA")
    if named:
        return _checked(Path(named))
    if host is None:
        host = next((own for start, own in _HOSTS.items() if region.startswith(start)), _HOST)
    url = f"{host}/{region}/{region}-bundle.pem"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            told = answer.read(1 << 20)
    except (urllib.error.URLError, TimeoutError) as exc:
        raise PackagingError(
            f"RDS's certificate authorities cannot be had from {url} ({exc}); "
            "PAL_RDS_CA may name a file of them."
        ) from exc
    cache.mkdir(parents=True, exist_ok=True)
    fetched = cache / f"rds-{region}.pem"
    fetched.write_bytes(told)
    return _checked(fetched)


def _checked(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, OSError) as exc:
        raise PackagingError(f"{path} holds no certificate authorities: {exc}") from exc
    return path
