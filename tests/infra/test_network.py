"""The network of the packaged stack: where it lies."""

from typing import Any

import pytest

from scripts.deploying.emulator.values import Values
from tests.support.package import Package


@pytest.mark.parametrize(
    ("named", "zones"),
    [
        pytest.param({}, ["eu-west-1a", "eu-west-1b"], id="the-first-two"),
        pytest.param(
            {"ZoneA": "eu-west-1b", "ZoneB": "eu-west-1c"}, ["eu-west-1b", "eu-west-1c"], id="named"
        ),
    ],
)
def test_zones_can_be_named(dev_package: Package, named: dict[str, str], zones: list[str]) -> None:
    """No stack in accounts whose first zones lack a service: RDS Proxy is not in use1-az3."""
    template: dict[str, Any] = dev_package.template
    parameters = {
        name: spec.get("Default", "") for name, spec in template["Parameters"].items()
    } | named
    values = Values(
        parameters={**parameters, "AWS::Region": "eu-west-1"},
        conditions=template["Conditions"],
        mappings={},
        made={},
    )
    for first, second in (
        ("PrivateSubnetA", "PrivateSubnetB"),
        ("MicrovmSubnetA", "MicrovmSubnetB"),
    ):
        given = [dev_package.properties(one)["AvailabilityZone"] for one in (first, second)]
        assert values.resolve(given) == zones
    # the NAT gateway's own subnet is beside the first
    assert values.resolve(dev_package.properties("PublicSubnet")["AvailabilityZone"]) == zones[0]
