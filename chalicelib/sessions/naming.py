"""What a session's id looks like, for those who have to know no more of sessions."""

from chalicelib.errors import NotFound
from chalicelib.ids import is_id


def require_session_id(text: str) -> str:
    """The id from a path; NotFound if it cannot be one, as for one that does not exist."""
    if not is_id(text, "sess"):
        raise no_session()
    return text


def no_session() -> NotFound:
    """The error for a session that does not exist, or is another tenant's."""
    return NotFound("There is no such session.")
