"""The template beside what stands: what is in the one and not in the other."""

from ..errors import DeployError
from .building import Built
from .kinds import is_there
from .place import Place


def missing(built: Built, place: Place) -> list[str]:
    """Resources that are neither there nor listed as not emulated, with their types."""
    return sorted(
        f"{name} ({one['Type']})"
        for name, one in built.resources.items()
        if name not in built.absent
        and (
            name not in built.made
            or not is_there(place, one["Type"], built.made[name], built.properties[name])
        )
    )


def require_all(built: Built, place: Place) -> None:
    """Raise DeployError with the names of what is missing."""
    if gaps := missing(built, place):
        raise DeployError(
            f"The emulator has not made {', '.join(gaps)}, and kinds.yaml does not say that it "
            "need not."
        )
