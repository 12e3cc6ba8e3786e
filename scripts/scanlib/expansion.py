"""A packaged template as the scan looks at it: expanded, without what it excepts."""

import copy
from typing import Any

from ..packagelib.expansion import expand as expand_whole

REGION = "eu-west-1"


def expand(template: dict[str, Any]) -> dict[str, Any]:
    """Plain CloudFormation, parameters at their defaults, without what the scan excepts."""
    source = copy.deepcopy(template)
    for resource in source["Resources"].values():
        resource.get("Metadata", {}).pop("checkov", None)
        properties = resource.get("Properties", {})
        for what in ("CodeUri", "ContentUri"):
            if what in properties:
                # SAM wants them where a deployment puts them
                properties[what] = "s3://bucket/key"
    return expand_whole(source, region=REGION)
