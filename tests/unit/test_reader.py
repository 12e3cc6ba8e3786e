"""A reader of a session's events: every interleaving gives exactly the text."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.errors import InvalidField
from chalicelib.sessions.reader import LivePiece, Position, Reader
from chalicelib.sessions.rows import LogRow

# constant, as they are in the names of tests, which are the same in every worker
SESSION = "sess_01m8qhva2pdqf689kcc0pechpd"
TURN, OTHER = "tur_01m8qhva2q35afns1d2z1wy6az", "tur_01m8qhva2rdv7k3f5d6m9n8p2q"
PIECES = st.text(alphabet='ab \n"\\é你🌍\u2028', min_size=1, max_size=6)
ROW = LogRow(
    seq=0, kind="", turn_id=TURN, generation=1, start=None, text=None, data=f'{{"turnId":"{TURN}"}}'
)


class World:
    """The log and the live text of one turn, as the hub holds them, and readers of both."""

    def __init__(self) -> None:
        self.log: list[LogRow] = []
        self.text = ""
        self.logged = 0
        self.append("user_message", generation=None)
        self.append("turn_started")

    def append(self, kind: str, **more: object) -> LogRow:
        made = replace(ROW, seq=len(self.log) + 1, kind=kind, **more)  # type: ignore[arg-type]
        self.log.append(made)
        return made

    def write(self, text: str, readers: list["Visitor"]) -> None:
        piece = LivePiece(len(self.text), text, json.dumps(text))
        self.text += text
        for visitor in readers:
            if visitor.live:
                visitor.reader.take_piece(TURN, 1, piece)

    def flush(self, readers: list["Visitor"]) -> None:
        if self.logged < len(self.text):
            start, self.logged = self.logged, len(self.text)
            self.tell(self.append("delta", start=start, text=self.text[start:]), readers)

    def tell(self, made: LogRow, readers: list["Visitor"]) -> None:
        for visitor in readers:
            if visitor.attached:
                visitor.reader.take_row(made)


class Visitor:
    """Someone who reads, leaves and comes back; `live` where the turn runs in the same process."""

    def __init__(self, world: World, *, live: bool) -> None:
        self.world, self.live = world, live
        self.text, self.seqs, self.ends = "", [], []
        self.last_id: str | None = None
        self.come_back()

    def come_back(self) -> None:
        position = Position.parse(self.last_id) if self.last_id else Position(seq=0)
        self.reader = Reader(SESSION, position, most=1 << 20)
        for made in self.world.log:
            self.reader.take_row(made)
        self.reader.attached = self.attached = True
        if self.live and position.turn_id == TURN:
            self.reader.take_text(TURN, 1, self.world.text)

    def take(self, most: int | None = None) -> None:
        """Be given events; those beyond `most` were on their way when the line broke."""
        for event in self.reader.drain()[:most]:
            self.last_id = event.id
            data = json.loads(event.data)
            if event.name == "message_delta":
                self.text += data["delta"]
                self.seqs.append(data["seq"])
            elif event.name == "message_completed":
                self.ends.append(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_interleaving_gives_every_reader_exactly_the_text(data: st.DataObject) -> None:
    """Lost if red: characters, or the trust that a reconnect repeats none."""
    world = World()
    visitors: list[Visitor] = []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["write", "flush", "open", "take", "break", "message"]))
        if step == "write":
            world.write(data.draw(PIECES), visitors)
        elif step == "flush":
            world.flush(visitors)
        elif step == "message":
            world.tell(world.append("user_message", turn_id=OTHER, generation=None), visitors)
        elif step == "open":
            visitors.append(Visitor(world, live=data.draw(st.booleans())))
        elif visitors:
            visitor = data.draw(st.sampled_from(visitors))
            if step == "take":
                visitor.take()
            else:
                visitor.take(data.draw(st.integers(0, 3)))
                visitor.come_back()
    world.flush(visitors)
    world.tell(world.append("message_completed"), visitors)
    for visitor in visitors:
        visitor.take()
        assert visitor.text == world.text
        assert visitor.seqs == list(range(1, len(visitor.seqs) + 1))
        assert len(visitor.ends) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "1-2",
        f"1-{TURN}-1-2",
        f"1-{TURN}-1-2-x",
        f"1-{SESSION}-1-2-3",
        f"1-{TURN}\n-1-2-3",
        "1" * 30,
        "٣",
        "1" * 300,
    ],
)
def test_what_is_no_event_id_is_refused(text: str) -> None:
    """Lost if red: a clear 422, or what a forged id puts into the stream."""
    with pytest.raises(InvalidField):
        Position.parse(text)


@pytest.mark.parametrize("text", ["0", "17", f"17-{TURN}-3-120-17"])
def test_event_id_survives_the_round_trip(text: str) -> None:
    """Lost if red: every resume."""
    assert str(Position.parse(text)) == text


def test_slow_reader_is_dropped_and_not_buffered_without_limit() -> None:
    """Lost if red: the process's memory, to one reader that stopped reading."""
    world = World()
    visitor = Visitor(world, live=True)
    visitor.reader._most = 2_000  # the hub's bound, made small
    for _ in range(100):
        world.write("x" * 50, [visitor])
    assert visitor.reader.overflowed
    assert visitor.reader.closed
    assert visitor.reader.drain() == []


def test_reader_of_one_turn_skips_the_others_and_ends_with_its_own() -> None:
    """Lost if red: a POST's stream that shows someone else's turn, or never ends."""
    reader = Reader(SESSION, Position(seq=0), most=1 << 20, only_turn=OTHER)
    world = World()
    world.text = "not for this reader"
    world.flush([])
    world.append("message_completed")
    world.append("turn_started", turn_id=OTHER, generation=2)
    world.append("delta", turn_id=OTHER, generation=2, start=0, text="mine")
    world.append("message_completed", turn_id=OTHER, generation=2)
    world.append("user_message", turn_id=TURN, generation=None)
    for made in world.log:
        reader.take_row(made)
    names = [event.name for event in reader.drain()]
    assert names == ["turn_started", "message_delta", "message_completed"]
    assert reader.closed
