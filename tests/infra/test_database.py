"""The database of the packaged stack: who reaches it, and how they log in."""

from typing import Any

import pytest

from tests.support.package import Package


def group(name: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, "GroupId"]}


def test_logins_are_tokens_over_tls_on_both_sides_of_the_proxy(dev_package: Package) -> None:
    """Lost if red: a password somewhere, or tokens and rows that the network can read."""
    proxy = dev_package.properties("DatabaseProxy")
    assert proxy["DefaultAuthScheme"] == "IAM_AUTH"
    assert "Auth" not in proxy
    assert proxy["RequireTLS"] is True
    assert proxy["DebugLogging"] is False  # it would log statements
    cluster = dev_package.properties("Database")
    assert cluster["Engine"] == "aurora-postgresql"
    assert cluster["EnableIAMDatabaseAuthentication"] is True
    assert cluster["ManageMasterUserPassword"] is True
    assert cluster["StorageEncrypted"] is True
    assert dev_package.properties("DatabaseInstance")["PubliclyAccessible"] is False


@pytest.mark.parametrize(
    ("security_group", "to"),
    [
        ("FunctionSecurityGroup", "ProxySecurityGroup"),
        ("MigrateSecurityGroup", "DatabaseSecurityGroup"),
        ("ProxySecurityGroup", "DatabaseSecurityGroup"),
    ],
)
def test_only_the_next_hop_is_reached(dev_package: Package, security_group: str, to: str) -> None:
    """Lost if red: the cluster, past its proxy, from a function that runs what models ask for."""
    rules = dev_package.properties(security_group)["SecurityGroupEgress"]
    inside = [one for one in rules if "Fn::If" not in one]
    (rule,) = inside
    assert (rule["FromPort"], rule["ToPort"]) == (5432, 5432)
    assert rule["DestinationSecurityGroupId"] == group(to)
    outside = [way for one in rules for way in one.get("Fn::If", [])[1:]]
    assert all((way["FromPort"], way["ToPort"]) == (443, 443) for way in outside)
    assert bool(outside) == (security_group != "ProxySecurityGroup")


def test_nothing_comes_in_but_from_the_hop_before(dev_package: Package) -> None:
    """Lost if red: a door to the database for whatever else is in the network."""
    found: set[tuple[str, str]] = set()
    template: dict[str, Any] = dev_package.template
    for name, one in template["Resources"].items():
        properties = one.get("Properties", {})
        if one["Type"] == "AWS::EC2::SecurityGroup":
            assert "SecurityGroupIngress" not in properties, name
        if one["Type"] == "AWS::EC2::SecurityGroupIngress":
            assert "CidrIp" not in properties, name
            to, by = (
                properties[key]["Fn::GetAtt"][0] for key in ("GroupId", "SourceSecurityGroupId")
            )
            found.add((by, to))
    assert {pair for pair in found if "Endpoint" not in pair[1]} == {
        ("FunctionSecurityGroup", "ProxySecurityGroup"),
        ("ProxySecurityGroup", "DatabaseSecurityGroup"),
        ("MigrateSecurityGroup", "DatabaseSecurityGroup"),
    }
