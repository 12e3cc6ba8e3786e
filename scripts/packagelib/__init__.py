"""What `scripts/package` makes: `make(stage, out)` gives the template, the code and the layers.

Named apart from the distribution `packaging`, which pytest and others import.
"""

from .authorities import rds_authorities
from .errors import PackagingError, WheelsUnavailable
from .package import Packaged, make, make_terraform

__all__ = [
    "Packaged",
    "PackagingError",
    "WheelsUnavailable",
    "make",
    "make_terraform",
    "rds_authorities",
]
