"""Identifiers: their form, and that their order is the order in which they were made."""

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from chalicelib.ids import Prefix, is_id, new_id

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID = "sess_" + "0" * 26


def milliseconds(made: str) -> int:
    value = 0
    for letter in made.rpartition("_")[2]:
        value = value * 32 + ALPHABET.index(letter)
    return value >> 80


@pytest.mark.parametrize("prefix", ["sess", "tur", "msg", "key", "ten"])
def test_new_id_has_the_form_of_the_contract(prefix: Prefix) -> None:
    """Lost if red: clients that check ids, and columns that do."""
    made = new_id(prefix)
    head, _, tail = made.partition("_")
    assert head == prefix
    assert len(tail) == 26
    assert set(tail) <= set(ALPHABET)
    assert tail[0] in "01234567"
    assert is_id(made, prefix)


def test_id_tells_when_it_was_made() -> None:
    """Lost if red: the order of what different processes made."""
    before = time.time_ns() // 1_000_000
    made = milliseconds(new_id("sess"))
    # counting up may borrow from the milliseconds to come, by a hair
    assert before <= made <= time.time_ns() // 1_000_000 + 1


def test_id_of_a_later_millisecond_sorts_after_that_of_another_process(root: Path) -> None:
    """Lost if red: the order of a transcript that two machines wrote."""
    make = [sys.executable, "-c", "from chalicelib.ids import new_id; print(new_id('msg'))"]
    first = new_id("msg")
    second = subprocess.run(make, cwd=root, check=True, capture_output=True, text=True).stdout
    assert first < second.strip() < new_id("msg")


def test_ids_ascend_strictly_within_a_process() -> None:
    """Lost if red: the order of messages that came in one millisecond."""
    made = [new_id("msg") for _ in range(50_000)]
    assert all(a < b for a, b in pairwise(made))


def test_ids_ascend_strictly_in_each_of_eight_threads_and_none_comes_twice() -> None:
    """Lost if red: one message overwrites another's."""
    made: list[list[str]] = [[] for _ in range(8)]
    together = threading.Barrier(8)

    def make(mine: list[str]) -> None:
        together.wait()
        mine += [new_id("msg") for _ in range(10_000)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    for mine in made:
        assert all(a < b for a, b in pairwise(mine))
    assert len({one for mine in made for one in mine}) == 80_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("sess", id="prefix-alone"),
        pytest.param("sess_", id="no-value"),
        pytest.param(ID[:-1], id="too-short"),
        pytest.param(ID + "0", id="too-long"),
        pytest.param(ID * 1000, id="far-too-long"),
        pytest.param(ID + "\n", id="newline-at-the-end"),
        pytest.param("\n" + ID, id="newline-before"),
        pytest.param(ID + " ", id="space-at-the-end"),
        pytest.param(ID + "\0", id="nul-at-the-end"),
        pytest.param(ID[:-1] + "٣", id="arabic-digit"),
        pytest.param(ID[:-1] + "３", id="full-width-digit"),
        pytest.param(ID[:-1] + "ſ", id="letter-that-folds-to-s"),
        pytest.param(ID.upper(), id="upper-case"),
        pytest.param(ID[:-1] + "A", id="upper-case-letter"),
        pytest.param(ID[:-1] + "u", id="letter-outside-the-alphabet"),
        pytest.param(ID[:-1] + "-", id="hyphen"),
        pytest.param("sess_8" + "0" * 25, id="more-than-128-bits"),
        pytest.param("tur_" + "0" * 26, id="another-prefix"),
        pytest.param("ses_" + "0" * 26, id="prefix-cut"),
        pytest.param("sess__" + "0" * 25, id="two-underscores"),
        pytest.param("sess-" + "0" * 26, id="no-underscore"),
        pytest.param("xsess_" + "0" * 26, id="prefix-with-more-before-it"),
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    """Lost if red: a clear 404, or what a forged id brings into a query or a stream."""
    assert is_id(ID, "sess")
    assert not is_id(text, "sess")
