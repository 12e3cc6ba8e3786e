"""A packaged template with SAM's types written out, as CloudFormation itself would."""

import copy
import logging
import os
from collections.abc import Mapping
from typing import Any

from .errors import PackagingError


def expand(
    template: dict[str, Any], parameters: Mapping[str, Any] | None = None, *, region: str
) -> dict[str, Any]:
    """Plain CloudFormation; parameters that are not given are at their defaults.

    Raises PackagingError where SAM would refuse the template.
    """
    # heavy, and only wanted here
    import boto3
    from samtranslator.model.exceptions import InvalidDocumentException
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    # it complains at its end of metrics of its own that no one has asked for
    logging.getLogger("samtranslator").setLevel(logging.ERROR)
    # SAM takes the region from a session of the default kind
    os.environ.setdefault("AWS_DEFAULT_REGION", region)
    declared = template.get("Parameters", {})
    values = {name: spec["Default"] for name, spec in declared.items() if "Default" in spec}
    translator = Translator({}, Parser(), boto_session=boto3.session.Session(region_name=region))
    try:
        made: dict[str, Any] = translator.translate(
            copy.deepcopy(template),
            parameter_values=values | dict(parameters or {}),
            feature_toggle=None,
        )
    except InvalidDocumentException as exc:
        causes = "; ".join(str(one.message) for one in exc.causes)
        raise PackagingError(f"SAM refuses the template: {causes}") from exc
    return made
