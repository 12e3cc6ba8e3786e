"""Bedrock's errors as ours: each that botocore's description of the service knows, and more."""

from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.model import OperationModel, ServiceModel

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.bedrock_reader import refusal


@cache
def service() -> ServiceModel:
    return botocore.session.Session().get_service_model("bedrock-runtime")


def operation(name: str) -> OperationModel:
    return service().operation_model(name)


MEANING: dict[str, type[ProviderError]] = {
    "AccessDeniedException": ProviderDenied,
    "InternalServerException": ProviderUnavailable,
    "ModelErrorException": ProviderUnavailable,
    "ModelNotReadyException": ProviderUnavailable,
    "ModelStreamErrorException": ProviderUnavailable,
    "ModelTimeoutException": ProviderUnavailable,
    "ResourceNotFoundException": ProviderDenied,
    "ServiceUnavailableException": ProviderUnavailable,
    "ThrottlingException": ProviderUnavailable,
    "ValidationException": ProviderRejected,
}


def errors_of_the_service() -> list[Any]:
    """The name and status of each error that a call or a stream of it may end in."""
    stream = operation("ConverseStream").output_shape.members["stream"]
    return [
        pytest.param(
            shape.name, shape.metadata["error"]["httpStatusCode"], id=f"{name}-{shape.name}"
        )
        for name in ("Converse", "ConverseStream")
        for shape in operation(name).error_shapes
    ] + [
        pytest.param(member, None, id=f"inside-{member}")
        for member, shape in stream.members.items()
        if shape.metadata.get("exception")
    ]


@pytest.mark.parametrize(("code", "status"), errors_of_the_service())
def test_every_error_of_the_service_has_its_meaning(code: str, status: int | None) -> None:
    """Lost if red: the right next step; a new error of botocore's is to be decided on here."""
    error = refusal("bedrock:m", code=code, message="what it wrote", status=status)
    named = code[:1].upper() + code[1:]
    assert type(error) is MEANING[named]
    assert named in error.message
    assert error.message.startswith("bedrock:m ")
    assert "what it wrote" not in error.message


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [
        ("UnrecognizedClientException", 403, ProviderDenied),
        ("InvalidSignatureException", 403, ProviderDenied),
        ("MissingAuthenticationTokenException", 403, ProviderDenied),
        ("ExpiredTokenException", 403, ProviderDenied),
        ("ExpiredTokenException", 400, ProviderDenied),
        ("UnknownOperationException", 404, ProviderDenied),
        ("ServiceQuotaExceededException", 400, ProviderUnavailable),
        ("SomethingNewException", 400, ProviderUnavailable),
        ("SomethingNewException", 503, ProviderUnavailable),
        ("somethingNewException", None, ProviderUnavailable),
        ("", None, ProviderUnavailable),
        ("a text, with <markup>", 500, ProviderUnavailable),
    ],
)
def test_error_that_all_of_aws_has_means_the_same(
    code: str, status: int | None, meaning: type[ProviderError]
) -> None:
    """Lost if red: expired credentials that are tried again, quotas that end the walk."""
    error = refusal("bedrock:m", code=code, message="", status=status)
    assert type(error) is meaning
    assert "text" not in error.message


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        ("The provided model identifier is invalid.", ProviderDenied),
        (
            "Invocation of model ID x with on-demand throughput isn’t supported. Retry your "
            "request with the ID or ARN of an inference profile that contains this model.",
            ProviderDenied,
        ),
        ("The provided model doesn't support on-demand throughput.", ProviderDenied),
        ("This action doesn't support the model that you provided.", ProviderDenied),
        ("This model doesn’t support tool use in streaming mode.", ProviderUnsupported),
        ("This model doesn't support the image content block.", ProviderUnsupported),
        ("The model does not support system messages.", ProviderUnsupported),
        ("Input is too long for requested model.", ProviderRejected),
        ("", ProviderRejected),
    ],
)
def test_refusal_that_blames_the_model_lets_the_next_one_try(
    message: str, meaning: type[ProviderError]
) -> None:
    """Lost if red: the whole chain, for one wrong model id or one model without tools."""
    error = refusal("bedrock:m", code="ValidationException", message=message, status=400)
    assert type(error) is meaning
    assert message[:20] not in error.message or not message


def test_retry_after_is_what_was_asked_for() -> None:
    """Lost if red: the service's own word on when to come back."""
    error = refusal(
        "bedrock:m", code="ThrottlingException", message="", status=429, retry_after="3"
    )
    assert isinstance(error, ProviderUnavailable)
    assert error.wait == 3


def test_every_reason_of_the_service_is_known() -> None:
    """Lost if red: a reason that a new botocore brings, told in the vendor's word."""
    reasons = service().shape_for("StopReason").enum
    assert set(reasons) == {
        "end_turn", "tool_use", "max_tokens", "stop_sequence", "guardrail_intervened",
        "content_filtered", "malformed_model_output", "malformed_tool_use",
        "model_context_window_exceeded",
    }  # fmt: skip
