"""Why a package could not be made; the text is for whoever ran the script."""


class PackagingError(Exception):
    """Nothing was made."""


class WheelsUnavailable(PackagingError):
    """A pinned package has no wheel for this platform, or the index does not give it."""
