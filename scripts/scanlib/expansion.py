"""A packaged template as CloudFormation sees it after SAM's transform."""

import copy
import os
from typing import Any

REGION = "eu-west-1"


def expand(template: dict[str, Any]) -> dict[str, Any]:
    """Plain CloudFormation, parameters at their defaults, without what the scan excepts."""
    # SAM takes the region from a session of the default kind
    os.environ.setdefault("AWS_DEFAULT_REGION", REGION)
    # heavy, and only wanted here
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    source = copy.deepcopy(template)
    for resource in source["Resources"].values():
        resource.get("Metadata", {}).pop("checkov", None)
        properties = resource.get("Properties", {})
        for what in ("CodeUri", "ContentUri"):
            if what in properties:
                # SAM wants them where a deployment puts them
                properties[what] = "s3://bucket/key"
    defaults = {
        name: spec["Default"]
        for name, spec in source.get("Parameters", {}).items()
        if "Default" in spec
    }
    session = boto3.session.Session(region_name=REGION)
    made: dict[str, Any] = Translator({}, Parser(), boto_session=session).translate(
        source, parameter_values=defaults, feature_toggle=None
    )
    return made
