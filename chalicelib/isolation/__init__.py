"""MicroVMs of sessions: the port, its drivers, and who has which."""

from collections.abc import Callable
from typing import Final

from chalicelib.config import Settings, SettingsError
from chalicelib.isolation.base import Driver

__all__ = ["DRIVERS", "make_driver"]


def _local(settings: Settings) -> Driver:
    if settings.on_lambda:
        raise SettingsError("PAL_ISOLATION=local is not for Lambda; set off or aws.")
    from chalicelib.isolation.local import LocalDriver

    return LocalDriver(settings)


def _aws(settings: Settings) -> Driver:
    if not settings.microvm_image:
        raise SettingsError("PAL_ISOLATION=aws takes PAL_MICROVM_IMAGE; it is not set.")
    if not settings.microvm_egress:
        raise SettingsError("PAL_ISOLATION=aws takes PAL_MICROVM_EGRESS; it is not set.")
    from chalicelib.isolation.aws import AwsDriver

    return AwsDriver(settings)


DRIVERS: Final[dict[str, Callable[[Settings], Driver]]] = {"local": _local, "aws": _aws}
"""How each driver is made, by the word of PAL_ISOLATION."""


def make_driver(settings: Settings) -> Driver | None:
    """The driver that the settings name; None where it is off."""
    return None if settings.isolation == "off" else DRIVERS[settings.isolation](settings)
