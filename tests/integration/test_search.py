"""Search on a real Postgres: what is found by its words, in which language, and whose it is."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.memory.embedder import literal
from chalicelib.memory.handles import read_handle
from chalicelib.memory.search import Search
from chalicelib.memory.search.english import FORMS
from chalicelib.memory.search.episodes import SCOPE_AT_MOST, Scope, read_terms
from chalicelib.memory.search.facts import find_facts
from chalicelib.memory.search.nearness import near_events
from chalicelib.memory.search.ranking import TALK
from chalicelib.memory.timeline import NewEvent, Timeline
from tests.support.postgres import TestDatabase

AT = datetime(2026, 3, 2, 9, tzinfo=UTC)
ANN = Principal(tenant_id="ten_a", key_id="key_a", scopes=frozenset({"memory"}))
BEN = Principal(tenant_id="ten_b", key_id="key_b", scopes=frozenset({"memory"}))


class House:
    """Two tenants with a timeline, and the search over it."""

    def __init__(self, db: Database, database: TestDatabase) -> None:
        self.db, self.database = db, database
        self.timeline = Timeline(db)
        self.search = Search(db, now=lambda: AT)

    async def say(self, *texts: str, caller: Principal = ANN, **more: Any) -> None:
        await self.timeline.ingest(
            caller, [said(text, number, **more) for number, text in enumerate(texts)]
        )

    async def find(self, text: str, *, caller: Principal = ANN, **more: Any) -> list[str]:
        """The contents of what is found, best first."""
        return [
            one["content"] for one in await self.search.find(caller.tenant_id, text=text, **more)
        ]


def said(
    text: str,
    number: int = 0,
    *,
    at: datetime = AT,
    group: str | None = "family",
    who: str | None = None,
    **more: Any,
) -> NewEvent:
    return NewEvent(
        channel="sms",
        kind="message",
        content=text,
        occurred_at=at + timedelta(seconds=10 * number),
        group_id=group,
        person=None if who is None else read_handle("sms2", who),
        name=who,
        **more,
    )


@asynccontextmanager
async def house(database: TestDatabase) -> AsyncIterator[House]:
    database.rows("INSERT INTO pal.tenants (id, name) VALUES ('ten_a', 'a'), ('ten_b', 'b')")
    db = Database(database.app)
    await db.open()
    try:
        yield House(db, database)
    finally:
        await db.close()


class Silent:
    """A vendor that takes a text and never answers."""

    name = "openai:silent:256"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


async def _rows_read(tx: Tx, table: str) -> int:
    """How many rows of this table the transaction has fetched, whether or not it used them."""
    query = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
        " WHERE schemaname = 'pal' AND relname = %s"
    )
    row = await (await tx.execute(query, (table,))).fetchone()
    assert row is not None
    return int(row[0])


Play = Callable[[Callable[[House], Awaitable[None]]], None]


@pytest.fixture
def play(database: TestDatabase) -> Play:
    """Runs what a test does in a house of its own."""

    def run(doing: Callable[[House], Awaitable[None]]) -> None:
        async def all_of_it() -> None:
            async with house(database) as made:
                await doing(made)

        asyncio.run(all_of_it())

    return run


def test_new_event_is_found_at_once(play: Play) -> None:
    """Lost if red: what was said a moment ago, which is what most is asked about."""

    async def doing(at: House) -> None:
        await at.say("The plumber comes on Tuesday.", "Bring bread, please.")
        assert (await at.find("when does the plumber come?"))[0] == "The plumber comes on Tuesday."
        assert (await at.find("bread", group_id="family"))[0] == "Bring bread, please."

    play(doing)


def test_other_forms_of_the_words_are_found(play: Play) -> None:
    """Lost if red: "I bought a kayak" to "what did she buy?"."""

    async def doing(at: House) -> None:
        await at.say("I bought a kayak", group="a")
        await at.say("We went to Lisbon with the children", group="b")
        assert (await at.find("what did they buy"))[0] == "I bought a kayak"
        assert (await at.find("who is going to Lisbon with a child"))[0].startswith("We went")

    play(doing)


# stems that have another stem themselves, by the word they come from
_WORDS = {"becam": "became", "choos": "choose", "wive": "wives"}


def test_english_forms_are_stems(database: TestDatabase) -> None:
    """Lost if red: forms in the list that no text is ever broken into."""
    rows = database.rows(
        "SELECT stem, pal.lexemes(word) FROM unnest(%s::text[], %s::text[]) AS g (stem, word)",
        sorted(FORMS),
        [_WORDS.get(stem, stem) for stem in sorted(FORMS)],
    )
    assert [stem for stem, lexemes in rows if lexemes != [stem]] == []


LANGUAGES = [
    pytest.param("Mi chiamo Anna e sono allergica alle noci.", "allergica alle noci", id="italian"),
    pytest.param("Ich wohne jetzt in Köln.", "wer wohnt in koln", id="german-without-umlaut"),
    pytest.param("Прилетаю в Осло", "осло", id="russian"),
    pytest.param("我对花生过敏，也不喝牛奶。", "花生", id="chinese"),
    pytest.param("来週は京都に行きます", "京都", id="japanese"),
    pytest.param("أنا أسكن في الرباط", "الرباط", id="arabic"),
    pytest.param("Saya suka mendaki gunung", "gunung", id="indonesian"),
    pytest.param("나는 부산에 살아", "부산에", id="korean"),
    pytest.param("मुझे चाय पसंद है", "चाय", id="hindi"),
    pytest.param("Tôi thích cà phê", "ca phe", id="vietnamese-without-accents"),
    pytest.param("either/or coffee/tea", "tea", id="slashes"),
    pytest.param("mail me at ann@example.org", "ann@example.org", id="address"),
]


@pytest.mark.parametrize(("text", "asked"), LANGUAGES)
def test_text_is_found_in_its_own_language(play: Play, text: str, asked: str) -> None:
    """Lost if red: the memory of everyone who does not write English (MEM-15)."""

    async def doing(at: House) -> None:
        await at.say("something else entirely", group="a")
        await at.say(text, group="b")
        await at.say("nothing to do with it", group="c")
        assert (await at.find(asked))[:1] == [text]
        assert (await at.find(asked, group_id="b"))[:1] == [text]

    play(doing)


def test_one_tenant_never_finds_the_others(play: Play) -> None:
    """Lost if red: the walls between tenants."""

    async def doing(at: House) -> None:
        for caller in (ANN, BEN):
            await at.say(f"The code of {caller.tenant_id} is blue", caller=caller, who="Zoe")
        for caller in (ANN, BEN):
            for query in ("the code is blue", "cpde bluee", "Zoe", "Zoee"):
                for more in ({}, {"group_id": "family"}):
                    found = await at.find(query, caller=caller, **more)
                    assert set(found) <= {f"The code of {caller.tenant_id} is blue"}
            assert await at.find("the code is blue", caller=caller)

    play(doing)


def test_functions_of_the_search_see_one_tenant(play: Play, database: TestDatabase) -> None:
    """Lost if red: rows of others for whoever calls the functions by hand, as pal_app."""

    async def doing(at: House) -> None:
        await at.say("shared word", caller=ANN, who="Zoe")
        database.rows(
            "INSERT INTO pal.memory_distillates (id, tenant_id, topic, topic_key, content,"
            " confidence, origin, source_kind, said_at)"
            " VALUES ('mem_a', 'ten_a', 'word', 'word', 'shared word', 1, 'stated', 'run', now())"
        )
        calls = (
            "pal.find_words('{share}', '{0}', 9, NULL, NULL, NULL, NULL)",
            "pal.find_both('{share,word}', '{0,1}', 9, NULL, NULL, NULL, NULL)",
            "pal.find_facts('{share}', '{0}', 9)",
        )
        with psycopg.connect(database.direct, autocommit=True) as conn:
            for tenant, count in (("ten_a", 1), ("ten_b", 0), (None, 0)):
                with conn.transaction():
                    if tenant is not None:
                        conn.execute("SELECT pal.enter(%s, '')", (tenant,))
                    for call in calls:
                        rows = conn.execute(f"SELECT * FROM {call}".encode()).fetchall()
                        assert len(rows) == count, (tenant, call)

    play(doing)


def test_role_that_sees_all_tenants_reads_no_words(database: TestDatabase) -> None:
    """Lost if red: every tenant's names and facts, to a mistake in one function."""
    columns = database.rows(
        "SELECT a.attrelid::regclass::text, a.attname FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'pal'::regnamespace"
        " AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
        " AND has_column_privilege('pal_search', c.oid, a.attnum, 'SELECT')"
    )
    told = {"content", "topic", "name", "name_key", "metadata", "handle"}
    assert columns
    assert [one for one in columns if one[1] in told] == []


def test_word_written_wrong_costs_no_look_at_other_tenants(play: Play) -> None:
    """Lost if red: a second for a typo, by what the others hold; and a clock to read that with."""

    async def doing(at: House) -> None:
        at.database.rows(
            "INSERT INTO pal.memory_distillates (id, tenant_id, topic, topic_key, content,"
            " confidence, origin, source_kind, said_at)"
            " SELECT 'mem_' || n, CASE n WHEN 0 THEN 'ten_b' ELSE 'ten_a' END, 'drink ' || n,"
            " 'drink ' || n, 'Likes espresso.', 1, 'stated', 'run', now()"
            " FROM generate_series(0, 3000) n"
        )
        at.database.rows("ANALYZE pal.memory_distillates")
        async with at.db.tenant("ten_b") as tx:
            query = await read_terms(tx, "expresso")
            found = await find_facts(tx, query, Scope(), vector=None, limit=5, now=AT)
            assert [one["id"] for one in found] == ["mem_0"]
            assert await _rows_read(tx, "memory_distillates") < 100

    play(doing)


def test_scope_keeps_to_group_person_and_time(play: Play) -> None:
    """Lost if red: another group's messages in the answer to this one's question."""

    async def doing(at: House) -> None:
        await at.say("the boat is red", who="Ann", group="a")
        await at.say("the boat is blue", who="Ben", group="b", at=AT + timedelta(days=3))
        await at.say("the boat is green", who="Ben", group="a", at=AT + timedelta(days=9))
        [(ben,)] = at.database.rows("SELECT id FROM pal.people WHERE name = 'Ben'")
        assert set(await at.find("boat", group_id="a")) == {"the boat is red", "the boat is green"}
        assert set(await at.find("boat", person_id=ben)) == {
            "the boat is blue",
            "the boat is green",
        }
        assert await at.find("boat", person_id=ben, group_id="a") == ["the boat is green"]
        later = {"since": AT + timedelta(days=1)}
        assert set(await at.find("boat", **later)) == {"the boat is blue", "the boat is green"}
        assert await at.find("boat", **later, until=AT + timedelta(days=9)) == ["the boat is blue"]
        assert await at.find("boat", group_id="a", until=AT + timedelta(days=1)) == [
            "the boat is red"
        ]
        assert await at.find("boat", group_id="none") == []

    play(doing)


def test_named_person_and_named_month_are_preferred(play: Play) -> None:
    """Lost if red: what Ben said in May, behind what anyone said at any time."""

    async def doing(at: House) -> None:
        for month in range(1, 7):
            for who in ("Ann", "Ben", "Cleo"):
                day = datetime(2025, month, 10, tzinfo=UTC)
                await at.say(
                    f"{who}: walked the dog in {month}", who=who, at=day, group=f"{who}{month}"
                )
        assert (await at.find("what did Ben do with the dog in May?"))[
            0
        ] == "Ben: walked the dog in 5"
        assert (await at.find("did Cleo walk the dog on 9 February 2025"))[0].startswith(
            "Cleo: walked the dog in 2"
        )

    play(doing)


def test_answer_in_the_next_message_is_found(play: Play) -> None:
    """Lost if red: every answer that does not repeat its question."""

    async def doing(at: House) -> None:
        await at.say(
            "Hello!", "Where is your sister living these days?", "In Lisbon, since June.", "Nice."
        )
        await at.say(*(f"filler number {n}" for n in range(30)), group="other")
        assert "In Lisbon, since June." in (await at.find("where does the sister live"))[:3]

    play(doing)


@pytest.mark.parametrize("asked", ["Melannie", "kayakk", "zzzz qqqq"])
def test_words_written_wrong_still_find(play: Play, asked: str) -> None:
    """Lost if red: what was meant, for one letter; and for no word at all, nothing."""

    async def doing(at: House) -> None:
        await at.say("a long talk about kayaking", who="Melanie")
        await at.say("unrelated", who="Ben", group="b")
        found = await at.find(asked)
        assert found == ([] if asked.startswith("z") else ["a long talk about kayaking"])

    play(doing)


def test_search_for_nothing_finds_nothing(play: Play) -> None:
    """Lost if red: an error, or a page of chance, for a question of stop words."""

    async def doing(at: House) -> None:
        assert await at.find("plumber") == []
        await at.say("The plumber comes.")
        for text in ("what is it?", "...", "  ", "\U0001f600"):
            assert await at.find(text) == []

    play(doing)


def test_words_that_half_of_the_tenant_says_still_find(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost if red: a large tenant's answers to a question of common words."""
    monkeypatch.setattr("chalicelib.memory.search.episodes._CAP", 20)

    async def doing(at: House) -> None:
        for number in range(60):
            await at.say(f"work meeting {number}", group=f"a{number}")
            await at.say(f"work lunch {number}", group=f"b{number}")
            await at.say(f"holiday meeting {number}", group=f"c{number}")
        await at.say("holiday lunch with the plumber", group="x")
        assert (await at.find("holiday lunch"))[0] == "holiday lunch with the plumber"
        assert (await at.find("plumber lunch"))[0] == "holiday lunch with the plumber"
        assert len(await at.find("work")) == 10
        # and so in a group that is too large to be read as a whole
        monkeypatch.setattr("chalicelib.memory.search.episodes.SCOPE_AT_MOST", 25)
        # which would find them as words that are written wrong
        monkeypatch.setattr("chalicelib.memory.search.episodes._MISSPELT_AT_MOST", 0)
        await at.say(*(f"work at home {number}" for number in range(30)), group="large")
        later = AT + timedelta(days=1)
        await at.say(*(f"work elsewhere {n}" for n in range(40)), group="later", at=later)
        found = await at.find("work", group_id="large")
        assert len(found) == 10
        assert all(one.startswith("work at home") for one in found)

    play(doing)


def test_large_group_is_searched_by_the_index(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost if red: half of a group's history, once it is longer than what is read row by row."""
    monkeypatch.setattr("chalicelib.memory.search.episodes.SCOPE_AT_MOST", 5)
    assert SCOPE_AT_MOST > 5

    async def doing(at: House) -> None:
        await at.say("the boat is red", *(f"message {n}" for n in range(10)), who="Ann", group="a")
        await at.say("the boat is blue", who="Ben", group="b")
        [(ann,)] = at.database.rows("SELECT id FROM pal.people WHERE name = 'Ann'")
        for scope in ({"group_id": "a"}, {"person_id": ann}):
            found = await at.find("boat", **scope)
            assert found[0] == "the boat is red"
            assert "the boat is blue" not in found

    play(doing)


def places(database: TestDatabase) -> list[int]:
    rows = database.rows(
        "SELECT m.place FROM pal.memory_index m JOIN pal.memory_events e ON e.id = m.event_id"
        " ORDER BY e.content"
    )
    return [row[0] for row in rows]


def test_gap_of_an_hour_parts_two_conversations(play: Play, database: TestDatabase) -> None:
    """Lost if red: an answer that is explained by what was said the day before (the contract)."""

    async def doing(at: House) -> None:
        hour = timedelta(hours=1)
        await at.timeline.ingest(
            ANN,
            [
                said("1"),
                said("2", at=AT + hour),
                said("3", at=AT + 2 * hour + timedelta(seconds=1)),
            ],
        )
        await at.say("4", at=AT + 2 * hour + timedelta(minutes=5))
        await at.say("5", at=AT + 9 * hour)
        assert places(database) == [1, 2, TALK + 1, TALK + 2, 2 * TALK + 1]

    play(doing)


def test_told_session_is_one_conversation(play: Play, database: TestDatabase) -> None:
    """Lost if red: a talk with a pause in it, taken for two."""

    async def doing(at: House) -> None:
        day = timedelta(days=1)
        in_one: dict[str, Any] = {"metadata": {"sessionId": "s1"}}
        await at.timeline.ingest(
            ANN, [said("1", **in_one), said("2", at=AT + day, **in_one), said("3", at=AT + 2 * day)]
        )
        assert places(database) == [1, 2, 1]

    play(doing)


def test_deleted_event_is_gone_from_search(play: Play, database: TestDatabase) -> None:
    """Lost if red: words that someone has had deleted."""

    async def doing(at: House) -> None:
        await at.say("the boat is red")
        database.rows("DELETE FROM pal.memory_events")
        assert await at.find("boat") == []
        assert database.one("SELECT count(*) FROM pal.memory_index") == 0

    play(doing)


def add_facts(database: TestDatabase, *facts: Sequence[str], tenant: str = "ten_a") -> None:
    for number, (topic, content, *person) in enumerate(facts):
        database.rows(
            "INSERT INTO pal.memory_distillates (id, tenant_id, person_id, topic, topic_key,"
            " content, confidence, origin, source_kind, said_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, 0.9, 'stated', 'run', now())",
            f"mem_{tenant}_{number}",
            tenant,
            person[0] if person else None,
            topic,
            topic,
            content,
        )


def test_facts_are_found_by_topic_words_and_misspelling(play: Play) -> None:
    """Lost if red: what is known, for whoever asks in other words than it was kept in."""

    async def doing(at: House) -> None:
        add_facts(
            at.database,
            ("food allergies", "Is allergic to walnuts."),
            ("meetings", "Prefers mornings."),
            ("家", "住在上海，有两只猫"),
        )
        semantic = {"tiers": ("semantic",)}
        assert (await at.find("what about walnuts?", **semantic))[0] == "Is allergic to walnuts."
        assert (await at.find("allergy", **semantic))[0] == "Is allergic to walnuts."
        assert (await at.find("wallnuts", **semantic))[0] == "Is allergic to walnuts."
        assert (await at.find("上海", **semantic))[0] == "住在上海，有两只猫"
        assert await at.find("bicycle", **semantic) == []
        at.database.rows(
            "UPDATE pal.memory_distillates SET superseded_by = 'mem_ten_a_1',"
            " superseded_at = now() WHERE id = 'mem_ten_a_0'"
        )
        assert await at.find("walnuts", **semantic) == []

    play(doing)


def test_tiers_are_kept_apart_and_come_together(play: Play) -> None:
    """Lost if red: the tier that was asked for, or the facts among a thousand messages."""

    async def doing(at: House) -> None:
        await at.say("I am allergic to walnuts")
        add_facts(at.database, ("food allergies", "Is allergic to walnuts."))
        found = await at.search.find("ten_a", text="allergic to walnuts")
        assert {one["tier"] for one in found} == {"episodic", "semantic"}
        for tier in ("episodic", "semantic"):
            only = await at.search.find("ten_a", text="walnuts", tiers=(tier,))
            assert [one["tier"] for one in only] == [tier]
        assert await at.search.find("ten_a", text="walnuts", tiers=("narrative",)) == []

    play(doing)


@pytest.mark.parametrize("scope", [Scope(group_id="g1"), Scope(person_id="per_1")], ids=repr)
def test_nearness_reads_a_scope_once_before_any_statistics(play: Play, scope: Scope) -> None:
    """Lost if red: seconds for a search in a group or of a person, until the server has analysed.

    Vectors of the whole tenant were read for each row of the scope.
    """

    async def doing(at: House) -> None:
        at.database.rows("ALTER TABLE pal.memory_vectors SET (autovacuum_enabled = off)")
        at.database.rows("ALTER TABLE pal.memory_index SET (autovacuum_enabled = off)")
        at.database.rows("ALTER TABLE pal.memory_events SET (autovacuum_enabled = off)")
        at.database.rows("INSERT INTO pal.people (id, tenant_id) VALUES ('per_1', 'ten_a')")
        at.database.rows(
            "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, group_id,"
            " person_id, content)"
            " SELECT 'evt_' || n, 'ten_a', now(), 'sms', 'message', 'g' || mod(n, 10),"
            " CASE WHEN mod(n, 10) = 2 THEN 'per_1' END, 'word' FROM generate_series(1, 3000) n"
        )
        vector = literal([1 / 16] * 256)
        at.database.rows(
            "INSERT INTO pal.memory_vectors (tenant_id, event_id, model, vec)"
            " SELECT tenant_id, id, 'one', %s::text::halfvec FROM pal.memory_events",
            vector,
        )
        async with at.db.tenant("ten_a") as tx:
            near = await near_events(tx, model="one", vector=vector, rows=300, scope=scope)
            assert len(near) == 100
            assert await _rows_read(tx, "memory_vectors") <= 3_000

    play(doing)


def test_text_of_any_words_is_taken(play: Play) -> None:
    """Lost if red: a batch that is answered with "try again" for ever, for words that long."""

    async def doing(at: House) -> None:
        numbers = iter(range(10**6))
        # each counts as a whole and by its parts: more than a tsvector holds
        compounds = "-".join(chr(0x905 + next(numbers) * 7 % 0x34) * 50 + "x" for _ in range(3))
        text = " ".join(compounds.replace("x", f"क{n}") for n in range(1_200))[:199_000]
        await at.say(text + " pomegranate")
        assert len(await at.find("pomegranate")) == 1

    play(doing)


def test_conversation_after_the_last_place_is_kept(play: Play) -> None:
    """Lost if red: a group that can say nothing more, after two hundred thousand conversations."""

    async def doing(at: House) -> None:
        await at.say("The first words.")
        for last in (1_999_999_990, 2_147_479_000):
            at.database.rows("UPDATE pal.memory_index SET place = %s", last)
            await at.say("Nothing more.", at=AT + timedelta(days=1))
            await at.say("Pomegranates at last.", "And figs.", at=AT + timedelta(days=10))
        assert "Pomegranates at last." in await at.find("pomegranates")

    play(doing)


def test_word_written_wrong_is_found_behind_what_others_said_since(play: Play) -> None:
    """Lost if red: a typo finds nothing of a person who has not been the last to speak."""

    async def doing(at: House) -> None:
        await at.say("My dentist is Kowalczyk.", who="Zoe")
        for day in (1, 2):
            talk = [f"Talk of number {n}." for n in range(300)]
            await at.say(*talk, who="Max", at=AT + timedelta(days=day))
        [(zoe,)] = at.database.rows("SELECT id FROM pal.people WHERE name = 'Zoe'")
        assert await at.find("kowalcyk", person_id=zoe) == ["My dentist is Kowalczyk."]

    play(doing)


def test_word_written_wrong_among_long_texts_is_no_long_wait(play: Play) -> None:
    """Lost if red: one typo holds a connection for half a minute, and is answered with a 503."""

    async def doing(at: House) -> None:
        for day in range(6):
            text = "".join(f"{n:x} " for n in range(day, 200_000, 6))[:199_000]
            await at.say(*["Kowalczyk " + text] * 5, at=AT + timedelta(days=day))
        start = time.perf_counter()
        assert await at.find("kowalcyk plumbing restaurant")
        assert time.perf_counter() - start < 1.5

    play(doing)


def test_batches_at_once_have_places_of_their_own(play: Play) -> None:
    """Lost if red: an import by several workers finds less: each batch passes for the others."""

    async def doing(at: House) -> None:
        batches = (
            at.say(*(f"Of {day} and {n}." for n in range(60)), at=AT + timedelta(days=day))
            for day in range(8)
        )
        await asyncio.gather(*batches)
        shared = at.database.rows(
            "SELECT place FROM pal.memory_index GROUP BY stream, place HAVING count(*) > 1"
        )
        assert shared == []

    play(doing)


def test_batch_waits_only_so_long_for_another(play: Play) -> None:
    """Lost if red: one writer that hangs keeps its group's events, and a connection each, out."""

    async def doing(at: House) -> None:
        insert = (
            "INSERT INTO memory_events (id, tenant_id, occurred_at, channel, kind, group_id,"
            " content) VALUES ('evt_1', pal.tenant(), now(), 'sms', 'message', 'family', 'Slow.')"
        )
        async with at.db.tenant("ten_a") as tx:
            await tx.execute(insert)
            await at.say("Quick.")
            assert await at.find("quick") == ["Quick."]

    play(doing)


def test_vendor_that_never_answers_costs_the_meaning_alone(play: Play) -> None:
    """Lost if red: every search hangs for minutes with the vendor of the embeddings."""

    async def doing(at: House) -> None:
        await at.say("We bought a red bicycle.")
        search = Search(at.db, Silent(), now=lambda: AT, patience=0.05)
        async with asyncio.timeout(5):
            found = await search.find("ten_a", text="bicycle")
        assert [one["content"] for one in found] == ["We bought a red bicycle."]

    play(doing)


def test_nearest_of_a_time_are_not_crowded_out_by_those_before(play: Play) -> None:
    """Lost if red: what was said last week in other words, where more was said of it last year."""

    async def doing(at: House) -> None:
        near, less_near = [1.0] + [0.0] * 255, [0.6, 0.8] + [0.0] * 254
        at.database.rows(
            "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, content)"
            " SELECT 'evt_' || n, 'ten_a', %s - make_interval(days => n), 'sms', 'message', 'word'"
            " FROM generate_series(0, 150) n",
            AT,
        )
        at.database.rows(
            "INSERT INTO pal.memory_vectors (tenant_id, event_id, model, vec)"
            " SELECT tenant_id, id, 'one', (CASE id WHEN 'evt_0' THEN %s ELSE %s END)::halfvec"
            " FROM pal.memory_events",
            literal(less_near),
            literal(near),
        )
        async with at.db.tenant("ten_a") as tx:
            scope = Scope(since=AT, until=AT + timedelta(days=1))
            found = await near_events(tx, model="one", vector=literal(near), rows=151, scope=scope)
        assert [round(cosine, 1) for _, cosine in found] == [0.6]

    play(doing)
