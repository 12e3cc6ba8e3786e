"""`scripts/package`: one template of many files, two layers, the same bytes each time."""

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chalicelib.embeddings import wheel
from scripts.packagelib import Packaged, PackagingError, WheelsUnavailable, make, rds_authorities
from scripts.packagelib.layers import RUNTIME, Layer, build_layer
from scripts.packagelib.templates import join
from tests.support.skipping import skip_except_in_ci

# the first test that needs the layers may have to make them
pytestmark = pytest.mark.timeout(300)

# Lambda's own limit is 250 MB
UNZIPPED_AT_MOST = 180_000_000
SITE = f"python/lib/{RUNTIME}/site-packages"
EMBEDDING = {"APIHandler", "Stream", "TurnWorker", "MemoryIndex"}


@pytest.fixture(scope="module")
def made(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    try:
        return make("dev", tmp_path_factory.mktemp("package"), source=checkout)
    except WheelsUnavailable as exc:
        skip_except_in_ci(str(exc))


# --- the same input, the same bytes ---------------------------------------------------------------
def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_another_checkout_of_the_same_gives_the_same_package(
    made: Packaged, checkout: Path, tmp_path: Path
) -> None:
    """Each deploy would change every function, and nobody could tell what is running."""
    other = tmp_path / "another/place"
    # other times, the files in another order on the disk, other rights for others, and leavings
    for path in sorted(checkout.rglob("*"), reverse=True):
        target = other / path.relative_to(checkout)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o700 if os.access(path, os.X_OK) else 0o600)
            os.utime(target, (1_000_000_000, 1_000_000_000))
    (other / "chalicelib/__pycache__").mkdir()
    (other / "chalicelib/__pycache__/app.cpython-311.pyc").write_bytes(b"old")
    (other / "chalicelib/.app.py.swp").write_bytes(b"mine")

    again = make("dev", tmp_path / "out", source=other)

    assert set(_hashes(made.folder)) == {
        *("sam.json", "deployment.zip", "layer-deployment.zip", "embeddings-layer.zip")
    }
    assert _hashes(again.folder) == _hashes(made.folder)


def test_a_layer_that_is_built_anew_has_the_same_bytes(tmp_path: Path) -> None:
    """A layer would be another on each machine, and the package with it."""
    # one of Python alone and one that is compiled
    pins = ("six==1.17.0", "wrapt==2.5.2")
    layer = Layer(name="some", pins=pins, keep=lambda name: True)
    targets = [tmp_path / place / "layer.zip" for place in ("one", "two")]
    for target in targets:
        target.parent.mkdir()
        try:
            build_layer(layer, target, architecture="x86_64")
        except WheelsUnavailable as exc:
            skip_except_in_ci(str(exc))
    first, second = (target.read_bytes() for target in targets)
    assert first == second
    with zipfile.ZipFile(targets[0]) as zipped:
        assert {item.date_time for item in zipped.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert f"{SITE}/six.py" in zipped.namelist()


# --- the layers -----------------------------------------------------------------------------------
def test_layer_of_embeddings_is_where_texts_are_embedded(made: Packaged) -> None:
    """Search would find nothing by meaning, or each function would carry 80 MB for nothing."""
    resources = json.loads(made.template.read_text())["Resources"]
    layered = {
        name: [one["Ref"] for one in resource["Properties"]["Layers"]]
        for name, resource in resources.items()
        if resource["Type"] == "AWS::Serverless::Function"
    }
    assert layered == {
        name: ["ManagedLayer", *(["EmbeddingsLayer"] if name in EMBEDDING else [])]
        for name in layered
    }
    assert set(layered) >= EMBEDDING
    files = {name: f"./{path.name}" for name, path in made.layers.items()}
    assert {name: resources[name]["Properties"]["ContentUri"] for name in files} == files


def test_functions_that_embed_stay_within_their_size(
    made: Packaged, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda would refuse them, or what only developers use would be shipped."""
    sizes = {}
    for path in (made.code, *made.layers.values()):
        with zipfile.ZipFile(path) as zipped:
            sizes[path.name] = sum(item.file_size for item in zipped.infolist())
            names = zipped.namelist()
        modules = {name for name in names if name.endswith(".py")}
        assert {name for name in names if name.endswith(".pyc")} == set(map(cached, modules))
    with capsys.disabled():
        print(f"\nMB unzipped: { ({name: round(size / 1e6, 1) for name, size in sizes.items()}) }")
    assert sum(sizes.values()) < UNZIPPED_AT_MOST
    groups = tomllib.loads((checkout / "pyproject.toml").read_text())["dependency-groups"]
    pinned = {pin.replace("==", "-") + ".dist-info" for pin in groups["embeddings"]}
    tops = {name.removeprefix(f"{SITE}/").split("/")[0] for name in names}
    assert {name for name in tops if name.endswith(".dist-info")} == pinned


def test_packaged_weights_make_the_vectors_of_the_checkout(made: Packaged, tmp_path: Path) -> None:
    """What was left out of the layer would be missed by the first search on Lambda."""
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        skip_except_in_ci("the layer is built for Linux on x86-64, which this machine is not")
    for path, place in ((made.code, "task"), *((one, "opt") for one in made.layers.values())):
        with zipfile.ZipFile(path) as zipped:
            zipped.extractall(tmp_path / place)
    program = """if True:
        import asyncio, json, sys
        from chalicelib.embeddings.wheel import WheelEmbedder, installed
        assert installed()
        print(json.dumps(asyncio.run(WheelEmbedder().embed(sys.argv[1:]))))
    """
    texts = ["My favourite player is Rossi.", "我们明天见"]
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [base, "-S", "-c", program, *texts],
        env={
            "PYTHONPATH": f"{tmp_path / 'task'}:{tmp_path / 'opt' / SITE}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == wheel._embed(texts)


def test_wheel_that_lambda_cannot_load_is_an_error(tmp_path: Path) -> None:
    """Chalice leaves it out with exit code 0, and every function fails on its first import."""
    layer = Layer(name="none", pins=("psycopg-binary==0.0.1",), keep=lambda name: True)
    with pytest.raises(WheelsUnavailable, match="psycopg-binary"):
        build_layer(layer, tmp_path / "layer.zip", architecture="x86_64")


def cached(module: str) -> str:
    """Where a module's bytecode lies, which Lambda, being read-only there, would not keep."""
    folder, _, name = module.rpartition("/")
    tag = sys.implementation.cache_tag
    return f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc".removeprefix("/")


# --- the template ---------------------------------------------------------------------------------
@pytest.fixture
def infra(tmp_path: Path) -> Callable[..., Path]:
    """A folder of these files."""

    def write(**files: str) -> Path:
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return write


def test_files_add_to_one_resource(infra: Callable[..., Path]) -> None:
    """A subject could not have a file of its own, or one file would overwrite another's."""
    folder = infra(
        one="Resources:\n  A: {Properties: {Env: &e {X: !Sub '${S}-x'}, At: !GetAtt Q.Arn}}\n"
        "  B: {Properties: {Env: *e}}\n",
        two="AWSTemplateFormatVersion: '2010-09-09'\nResources:\n"
        "  A: {Properties: {Env: {Y: !If [C, 1, !Ref P]}, On: 2012-10-17}}\n",
    )
    joined = join(folder)
    assert joined["Resources"] == {
        "A": {
            "Properties": {
                "Env": {"X": {"Fn::Sub": "${S}-x"}, "Y": {"Fn::If": ["C", 1, {"Ref": "P"}]}},
                "At": {"Fn::GetAtt": ["Q", "Arn"]},
                "On": "2012-10-17",
            }
        },
        # what is added to A is not added to what A shares an alias with
        "B": {"Properties": {"Env": {"X": {"Fn::Sub": "${S}-x"}}}},
    }


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param("A: {B: 1}", "A: {B: 2}", id="two-values"),
        pytest.param("A: {B: 1}", "A: {B: 1}", id="the-same-value"),
        pytest.param("A: {B: !Ref X}", "A: {B: !Sub y}", id="two-intrinsics"),
        pytest.param("A: {B: [1]}", "A: {B: [2]}", id="two-lists"),
    ],
)
def test_what_two_files_say_is_an_error(infra: Callable[..., Path], one: str, two: str) -> None:
    """The one whose name comes later in the alphabet would win, and nobody would see it."""
    with pytest.raises(PackagingError, match=r"A\.B is said by one\.yaml and by two\.yaml"):
        join(infra(one=one, two=two))


def test_what_one_file_says_twice_is_an_error(infra: Callable[..., Path]) -> None:
    """YAML keeps the last one in silence."""
    with pytest.raises(PackagingError, match="B is there twice"):
        join(infra(one="A:\n  B: 1\n  C: 2\n  B: 3\n"))


# --- RDS's certificate authorities ----------------------------------------------------------------
def test_authorities_of_rds_are_in_the_code(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema could not be made: migrate would not trust the cluster."""
    bundle = _authority()
    asked = []

    class Truststore(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bundle if "eu-west-1" in self.path else b"<html>sorry</html>")

        def log_message(self, *told: object) -> None:
            """Nothing."""

    monkeypatch.delenv("PAL_RDS_CA", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Truststore) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        fetched = rds_authorities("eu-west-1", cache=tmp_path, host=host)
        with pytest.raises(PackagingError, match="holds no certificate authorities"):
            rds_authorities("mars-1", cache=tmp_path, host=host)
        server.shutdown()
    assert asked[0] == "/eu-west-1/eu-west-1-bundle.pem"
    with pytest.raises(PackagingError, match="PAL_RDS_CA"):
        rds_authorities("eu-west-1", cache=tmp_path, host=host)
    monkeypatch.setenv("PAL_RDS_CA", str(fetched))
    assert rds_authorities("eu-west-1", host=host) == fetched

    made = make("dev", tmp_path / "out", source=checkout, rds_ca=fetched)
    place = json.loads(made.template.read_text())["Parameters"]["DatabaseCaFile"]["Default"]
    with zipfile.ZipFile(made.code) as zipped:
        assert zipped.read(place.removeprefix("/var/task/")) == bundle


def _authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "RDS")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)
