"""Topics in the form they are compared in, and the keys of what is about no one known."""

import pytest

from chalicelib.memory.topics import fold_topic, unattached_key


@pytest.mark.parametrize("spelt", ["Home City", " home_city ", "ＨＯＭＥ  city", "home\x1fcity"])
def test_spellings_of_a_topic_are_one(spelt: str) -> None:
    """Lost if red: two home cities of one person, for a capital letter."""
    assert fold_topic(spelt) == "home city"


def test_folded_topic_is_bounded() -> None:
    """Lost if red: a whole slice, to a topic that folds to more than an index takes."""
    assert len(fold_topic("\ufdfa" * 80)) == 200


def test_keys_of_no_one_known_are_one_where_all_of_it_is() -> None:
    """Lost if red: one Jack's sport, to another's; or two facts of the same (MEM-9)."""
    key = unattached_key("Sport", name="Jack", place="per_a")
    assert key == unattached_key("sport ", name=" JACK", place="per_a")
    others = [
        unattached_key("food", name="Jack", place="per_a"),
        unattached_key("Sport", name="Mia", place="per_a"),
        unattached_key("Sport", name="Jack", place="per_b"),
        unattached_key("Sport", name="Jack", place=""),
        unattached_key("Sport jack", name="", place="per_a"),
    ]
    assert len({key, *others}) == 6
    assert key.split("\x1f")[0] == fold_topic("Sport"), "by which a list is filtered"
