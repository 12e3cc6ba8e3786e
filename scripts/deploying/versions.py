"""What has a function behind an alias publish a new version, which the alias then goes to.

SAM names a version by a hash of the function's properties in which a parameter or a layer is but a
name: another value, or another layer of the same name, would change the function and leave the
alias, hence all traffic, at the old version. So the function's description names what these are.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def marked(template: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """The template whose aliased functions say what their settings and layers are."""
    resources: dict[str, Any] = template["Resources"]
    layers = {
        name: one
        for name, one in resources.items()
        if one.get("Type") == "AWS::Serverless::LayerVersion"
    }
    made = dict(resources)
    for name, one in resources.items():
        if "AutoPublishAlias" in one.get("Properties", {}):
            whole = [one, layers, template.get("Globals"), sorted(values.items())]
            digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
            told = {"Description": f"Settings and layers {digest[:16]}"}
            made[name] = {**one, "Properties": {**one["Properties"], **told}}
    return {**template, "Resources": made}


def values_of(
    template: Mapping[str, Any], given: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """What the parameters will be: as given, else as they were, else their defaults."""
    return {
        name: given.get(name, before.get(name, str(spec.get("Default", ""))))
        for name, spec in template.get("Parameters", {}).items()
    }
