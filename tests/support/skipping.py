"""What a test does where something that it needs is not there."""

import os
from typing import NoReturn

import pytest


def skip_except_in_ci(reason: str) -> NoReturn:
    """Skip on someone's own machine; fail in CI, where a skipped test would pass unseen."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
