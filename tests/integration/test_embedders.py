"""The vendors' embeddings over real HTTP: what is asked, what comes of it, and what goes wrong."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chalicelib.config import Secret, Settings
from chalicelib.embeddings import DIMENSIONS, Embedder, make_embedder
from chalicelib.embeddings.base import TEXT_BYTES
from chalicelib.errors import ProviderDenied, ProviderError, ProviderRejected, ProviderUnavailable
from tests.fakes.bedrock_driver import run, set_aws_variables, tells_nothing_it_should_not
from tests.fakes.embeddings_server import FakeEmbeddings, Fault, vector_for

BOTH = ["openai", "bedrock"]
ZERO = [0.0] * DIMENSIONS


@pytest.fixture
def fake() -> Iterator[FakeEmbeddings]:
    with FakeEmbeddings() as made:
        yield made


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeEmbeddings) -> None:
    """AWS's variables as a deploy has them, with the fake as its Bedrock."""
    set_aws_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", fake.bedrock_url)


def settings(vendor: str, fake: FakeEmbeddings, **changes: Any) -> Settings:
    usual = {
        "embeddings": vendor,
        "openai_base_url": fake.openai_url,
        "openai_api_key": Secret("sk-fake"),
    }
    return Settings(**(usual | changes))


def embed(vendor: str, fake: FakeEmbeddings, *texts: str, **changes: Any) -> list[list[float]]:
    async def call() -> list[list[float]]:
        made = make_embedder(settings(vendor, fake, **changes))
        assert made is not None
        try:
            return await made.embed(texts)
        finally:
            await made.close()

    return run(call())


def fails(vendor: str, fake: FakeEmbeddings, *texts: str, **changes: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        embed(vendor, fake, *(texts or ("one",)), **changes)
    assert tells_nothing_it_should_not(caught.value.message)
    assert "sk-fake" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("vendor", BOTH)
def test_each_text_gets_its_own_vector(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: search by meaning, which would find the neighbour of what was asked for."""
    fake.reversed = True
    texts = [f"text {n}" for n in range(40)] + ["text 1"]
    vectors = embed(vendor, fake, *texts)
    assert fake.refused == []
    for vector, text in zip(vectors, texts, strict=True):
        assert vector == pytest.approx(vector_for(text), abs=1e-9)
        assert math.hypot(*vector) == pytest.approx(1)


def test_openai_is_asked_in_batches(fake: FakeEmbeddings) -> None:
    """Lost if red: a call a message, or calls that are refused for their size."""
    embed("openai", fake, *(f"{n}" for n in range(300)))
    assert [len(one.texts) for one in fake.asked] == [128, 128, 44]
    asked = fake.asked[0]
    assert {key: value for key, value in asked.body.items() if key != "input"} == {
        "model": "text-embedding-3-small",
        "dimensions": 256,
        "encoding_format": "float",
    }
    assert asked.headers["authorization"] == "Bearer sk-fake"
    fake.asked.clear()
    embed("openai", fake, *(f"{n} " + "漢" * 10_000 for n in range(100)))
    assert fake.refused == []
    assert [len(one.texts) for one in fake.asked] == [37, 37, 26]


def test_titan_is_asked_for_several_texts_at_once(fake: FakeEmbeddings) -> None:
    """Lost if red: minutes for a batch, a text after the other; or a quota, all at once."""
    embed("bedrock", fake, *(f"{n}" for n in range(64)))
    assert sorted(fake.texts) == sorted(f"{n}" for n in range(64))
    assert fake.asked[0].body == {
        "inputText": fake.texts[0],
        "dimensions": 256,
        "normalize": True,
        "embeddingTypes": ["float"],
    }
    assert fake.asked[0].headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=")
    assert 1 < fake.at_once <= 16


@pytest.mark.parametrize("vendor", BOTH)
def test_empty_texts_are_not_asked_for(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: a whole batch, to one message without words."""
    vectors = embed(vendor, fake, "", "one", " \n", "two")
    assert [vectors[0], vectors[2]] == [ZERO, ZERO]
    assert vectors[3] == pytest.approx(vector_for("two"), abs=1e-9)
    assert sorted(fake.texts) == ["one", "two"]
    fake.asked.clear()
    assert embed(vendor, fake, "", "") == [ZERO, ZERO]
    assert embed(vendor, fake) == []
    assert fake.asked == []


@pytest.mark.parametrize("vendor", BOTH)
def test_long_texts_are_cut(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: refusals of what is longer than a model reads."""
    embed(vendor, fake, "x" * 100_000, "🦜" * 50_000, "lone \ud800 surrogate")
    assert fake.refused == []
    assert sorted(len(text) for text in fake.texts) == [16, TEXT_BYTES // 4, TEXT_BYTES]


@pytest.mark.parametrize("vendor", BOTH)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=429, code="ThrottlingException", retry_after="0"), id="429"),
        pytest.param(Fault(status=500, code="InternalServerException"), id="500"),
        pytest.param(Fault(status=503, code="ServiceUnavailableException"), id="503"),
        pytest.param(Fault(ends="reset"), id="reset"),
    ],
)
def test_passing_trouble_is_tried_once_more(
    vendor: str, fault: Fault, fake: FakeEmbeddings
) -> None:
    """Lost if red: vectors, to a vendor's bad second; or calls without end, in its bad hour."""
    fake.script(fault)
    assert embed(vendor, fake, "one") == [pytest.approx(vector_for("one"), abs=1e-9)]
    assert len(fake.asked) == 2
    fake.script(fault, fault)
    assert isinstance(fails(vendor, fake), ProviderUnavailable)
    assert len(fake.asked) == 4


@pytest.mark.parametrize("vendor", BOTH)
def test_vendor_that_wants_to_be_left_alone_is(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: a background job that sleeps for a minute with a connection in its hand."""
    fake.script(Fault(status=429, code="ThrottlingException", retry_after="60"))
    assert isinstance(fails(vendor, fake), ProviderUnavailable)
    assert len(fake.asked) == 1


@pytest.mark.parametrize("vendor", BOTH)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>", id="html"),
        pytest.param(b"{}", id="nothing"),
        pytest.param(b'{"data": [{"index": 0}], "embedding": null}', id="no-vector"),
        pytest.param(b'{"data": [{"index": 0, "embedding": [1]}], "embedding": [1]}', id="short"),
        pytest.param(b'{"data": [{"index": 7, "embedding": []}]}', id="other-index"),
    ],
)
def test_unreadable_answers_are_the_vendors_fault(
    vendor: str, body: bytes, fake: FakeEmbeddings
) -> None:
    """Lost if red: an internal error, or wrong vectors, from a proxy's error page."""
    fake.script(Fault(body=body))
    assert isinstance(fails(vendor, fake), ProviderUnavailable)


@pytest.mark.parametrize("vendor", BOTH)
def test_refused_text_does_not_keep_the_others_out(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: everything that came with a text the vendor will not read, for ever."""
    fake.unwanted = {"bad"}
    vectors = embed(vendor, fake, "one", "bad", "two")
    assert vectors == [
        pytest.approx(vector_for("one"), abs=1e-9),
        ZERO,
        pytest.approx(vector_for("two"), abs=1e-9),
    ]


@pytest.mark.parametrize("vendor", BOTH)
def test_refusal_of_everything_is_no_vector(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: zeros for a whole timeline, after a wrong PAL_EMBEDDINGS_MODEL."""
    texts = [f"{n}" for n in range(40)]
    kind = ProviderDenied if vendor == "bedrock" else ProviderRejected
    assert isinstance(fails(vendor, fake, *texts, embeddings_model="wrong"), kind)
    assert isinstance(fails(vendor, fake, "one", embeddings_model="wrong"), kind)
    fake.unwanted = set(texts)
    assert isinstance(fails(vendor, fake, *texts), ProviderRejected)
    if vendor == "openai":
        assert len(fake.asked) <= 10


def test_missing_or_wrong_key_says_so(fake: FakeEmbeddings) -> None:
    """Lost if red: knowing which variable to set."""
    unset = {"openai_api_key": Secret(""), "openai_base_url": Settings.openai_base_url}
    denied = fails("openai", fake, **unset)
    assert isinstance(denied, ProviderDenied)
    assert denied.message == "openai has no API key: set OPENAI_API_KEY."
    assert fake.asked == []
    assert isinstance(fails("openai", fake, openai_api_key=Secret("")), ProviderDenied)


@pytest.mark.parametrize("vendor", BOTH)
def test_silent_vendor_is_left(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: a search or a job that waits for ever."""
    fake.script(Fault(ends="hang"))
    failed = fails(vendor, fake, provider_answer_timeout=0.3)
    assert isinstance(failed, ProviderUnavailable)
    assert failed.message.endswith("timed out.")
    assert len(fake.asked) == 1


@pytest.mark.parametrize("vendor", BOTH)
def test_call_that_is_left_ends(vendor: str, fake: FakeEmbeddings) -> None:
    """Lost if red: connections and threads of searches that nobody waits for any more."""
    fake.script(Fault(ends="hang"))

    async def leave() -> None:
        made: Embedder | None = make_embedder(settings(vendor, fake))
        assert made is not None
        task = asyncio.create_task(made.embed(["one"]))
        while not fake.asked:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await made.close()

    run(leave())
