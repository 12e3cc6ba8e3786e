"""Everything that can go wrong, as one tree. Each class carries its HTTP status and code.

    PalError
    ├── InvalidRequest 400          malformed JSON
    ├── Unauthorized 401
    ├── Forbidden 403
    ├── NotFound 404                also another tenant's object
    ├── MethodNotAllowed 405
    ├── RequestTimeout 408
    ├── Conflict 409
    │   ├── IdempotencyConflict     same key, other body
    │   └── InProgress              same key, the first call still runs
    ├── TooLarge 413
    ├── UnsupportedMediaType 415
    ├── InvalidField 422            with details: [{field, reason}]
    ├── TooManyRequests 429
    ├── Unavailable 503
    ├── ProviderError 502           a turn's failure, seen in `message_error`
    │   ├── ProviderUnavailable     retryable: the next provider may be tried
    │   │   ├── ProviderDenied      the key or the model is refused: trying again is in vain
    │   │   └── ProviderUnsupported this model cannot take the request; nothing is wrong with it
    │   ├── ProviderRejected        the request itself was refused: it would be everywhere
    │   └── NoModel                 there is nothing but the stand-in, which will not do here
    └── TurnCancelled, TurnTimedOut ends of a turn that are nobody's fault

Two edges map: a vendor's or the database's errors become these where they are caught, and these
become statuses in `api.endpoint` and `stream.handler`. Sources of the statuses: the contract.
"""

from collections.abc import Sequence
from typing import Any


class PalError(Exception):
    """Root of the tree. `message` is for the caller: no secrets, no internals."""

    status = 500
    code = "internal"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        details: Sequence[dict[str, str]] = (),
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.details = list(details)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self, request_id: str) -> dict[str, Any]:
        """The error object of the contract: `{error, code, requestId, details?}`."""
        shape: dict[str, Any] = {"error": self.message, "code": self.code, "requestId": request_id}
        if self.details:
            shape["details"] = self.details
        return shape


class InvalidRequest(PalError):
    status, code = 400, "invalid_request"


class Unauthorized(PalError):
    status, code = 401, "unauthorized"


class Forbidden(PalError):
    status, code = 403, "forbidden"


class NotFound(PalError):
    status, code = 404, "not_found"


class MethodNotAllowed(PalError):
    """405, with an `Allow` header."""

    status, code = 405, "method_not_allowed"


class RequestTimeout(PalError):
    """408: the request did not come whole in time."""

    status, code = 408, "request_timeout"


class Conflict(PalError):
    status, code = 409, "conflict"


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class InProgress(Conflict):
    code = "in_progress"


class TooLarge(PalError):
    status, code = 413, "too_large"


class UnsupportedMediaType(PalError):
    status, code = 415, "unsupported_media_type"


class InvalidField(PalError):
    """422. `details` names each field by its path and says what is wrong with it."""

    status, code = 422, "invalid_field"

    @classmethod
    def of(cls, field: str, reason: str) -> "InvalidField":
        """One field, one reason: `InvalidField.of("after", "is not an event id")`."""
        return cls(f"{field}: {reason}", details=[{"field": field, "reason": reason}])


class TooManyRequests(PalError):
    status, code = 429, "too_many_requests"


class Unavailable(PalError):
    status, code, retryable = 503, "unavailable", True


class ProviderError(PalError):
    status, code = 502, "provider_error"


class ProviderUnavailable(ProviderError):
    """Another try may do better: of the same provider if `again`, not before `wait` seconds."""

    code, retryable = "provider_unavailable", True
    again = True

    def __init__(
        self, message: str, *, again: bool | None = None, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.again = type(self).again if again is None else again
        self.wait = wait


class ProviderDenied(ProviderUnavailable):
    code, again = "provider_denied", False


class ProviderUnsupported(ProviderUnavailable):
    code, again = "provider_unsupported", False


class ProviderRejected(ProviderError):
    code = "provider_rejected"


class NoModel(ProviderError):
    code = "no_model"


class TurnCancelled(PalError):
    status, code = 409, "cancelled"


class TurnTimedOut(PalError):
    status, code = 504, "turn_timeout"


BY_STATUS: dict[int, type[PalError]] = {
    cls.status: cls
    for cls in (
        InvalidRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        MethodNotAllowed,
        Conflict,
        TooLarge,
        UnsupportedMediaType,
        InvalidField,
        TooManyRequests,
        Unavailable,
    )
}
"""For answers that a framework made: their status, our class."""
