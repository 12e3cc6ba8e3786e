"""What can go wrong with an account, each as one sentence for a person."""

from boto3.exceptions import Boto3Error
from botocore import exceptions as boto


class DeployError(Exception):
    """The deployment cannot go on; the message is for a person and says what to do."""


_CREDENTIALS = "Sign in again (`aws sso login` or new access keys) and run this once more."
_SENTENCES = {
    "ExpiredToken": f"The AWS credentials have expired. {_CREDENTIALS}",
    "ExpiredTokenException": f"The AWS credentials have expired. {_CREDENTIALS}",
    "RequestExpired": f"The AWS credentials have expired. {_CREDENTIALS}",
    "InvalidClientTokenId": f"AWS does not know these credentials. {_CREDENTIALS}",
    "UnrecognizedClientException": f"AWS does not know these credentials. {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"AWS does not know these credentials. {_CREDENTIALS}",
}
_THROTTLED = {
    *("Throttling", "ThrottlingException", "TooManyRequestsException"),
    *("RequestLimitExceeded", "SlowDown", "LimitExceededException"),
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}


def explain(exc: BaseException) -> str | None:
    """The sentence for a fault that is a normal event; None for one of our own making."""
    if isinstance(exc, DeployError):
        return str(exc)
    if isinstance(exc, boto.ClientError):
        return _refused(exc)
    if isinstance(exc, boto.NoCredentialsError | boto.PartialCredentialsError):
        return "There are no AWS credentials; set AWS_PROFILE, or sign in with `aws sso login`."
    if isinstance(exc, boto.TokenRetrievalError | boto.UnauthorizedSSOTokenError):
        return _SENTENCES["ExpiredToken"]
    if isinstance(exc, boto.ProfileNotFound):
        return f"{exc}. Set AWS_PROFILE to one of `aws configure list-profiles`."
    if isinstance(exc, boto.NoRegionError):
        return "No region is set; pass --region or set AWS_REGION."
    if isinstance(exc, boto.EndpointConnectionError | boto.HTTPClientError):
        return f"AWS is out of reach from here: {_first_line(exc)}"
    if isinstance(exc, boto.ParamValidationError):
        return f"A value is not what AWS takes: {' '.join(str(exc).split())}"
    if isinstance(exc, boto.BotoCoreError | Boto3Error):
        return f"The call of AWS failed: {_first_line(exc)}"
    return None


def _refused(exc: boto.ClientError) -> str:
    error = exc.response.get("Error", {})
    code, what = error.get("Code", ""), exc.operation_name
    if code in _SENTENCES:
        return _SENTENCES[code]
    if code in _THROTTLED:
        return f"AWS throttles {what}; nothing more was changed. Wait a minute and run this again."
    message = _first_line(error.get("Message") or code)
    if code in _DENIED:
        return f"These credentials may not do {what}: {message}"
    return f"AWS refused {what}: {message}"


def _first_line(text: object) -> str:
    return (str(text).strip().splitlines() or [""])[0]
