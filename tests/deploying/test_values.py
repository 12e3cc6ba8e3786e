"""A template's intrinsic functions, as they are worked out for an emulator."""

from typing import Any

import pytest

from scripts.deploying.emulator.values import Made, Values, references
from scripts.deploying.errors import DeployError

ARN = "arn:aws:rds:eu-west-1:111122223333:db-proxy:prx-1"


@pytest.fixture
def values() -> Values:
    return Values(
        parameters={"Stage": "dev", "AWS::Region": "eu-west-1"},
        conditions={
            "IsDev": {"Fn::Equals": [{"Ref": "Stage"}, "dev"]},
            "IsProd": {"Fn::Not": [{"Condition": "IsDev"}]},
        },
        mappings={},
        made={"Proxy": Made(ref="proxy", attributes={"Arn": ARN})},
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"Fn::Sub": "pal-${Stage}-${Proxy}"}, "pal-dev-proxy", id="sub"),
        pytest.param({"Fn::Sub": "${!Kept} ${Proxy.Arn}"}, "${Kept} " + ARN, id="sub-literal"),
        pytest.param(
            {
                "Fn::Sub": [
                    "user:${Id}/pal_app",
                    {"Id": {"Fn::Select": [6, {"Fn::Split": [":", {"Fn::GetAtt": "Proxy.Arn"}]}]}},
                ]
            },
            "user:prx-1/pal_app",
            id="sub-of-a-list",
        ),
        pytest.param(
            {"Fn::Select": [1, {"Fn::Cidr": ["10.71.0.0/16", 4, 10]}]}, "10.71.4.0/22", id="cidr"
        ),
        pytest.param({"Fn::Select": [0, {"Fn::GetAZs": ""}]}, "eu-west-1a", id="zone"),
        pytest.param(
            [1, {"Fn::If": ["IsProd", 2, {"Ref": "AWS::NoValue"}]}], [1], id="no-value-in-a-list"
        ),
        pytest.param(
            {"a": {"Fn::If": ["IsProd", 2, {"Ref": "AWS::NoValue"}]}, "b": 1},
            {"b": 1},
            id="no-value-in-a-map",
        ),
    ],
)
def test_functions_give_what_cloudformation_gives(
    given: Any, expected: Any, values: Values
) -> None:
    """Lost if red: an emulator's stack with other names, networks or rights than AWS's."""
    assert values.resolve(given) == expected


def test_what_is_to_be_kept_stays_as_it_stands(values: Values) -> None:
    """Lost if red: a stack of the emulator whose resources do not refer to each other."""
    given = {
        "a": {"Ref": "Vpc"},
        "b": {"Fn::Sub": "${Stage}/${Vpc.Id}"},
        "c": {"Fn::Join": ["-", [{"Ref": "Stage"}, {"Ref": "Vpc"}]]},
    }
    assert values.resolve(given, keep=frozenset({"Vpc"})) == {
        "a": {"Ref": "Vpc"},
        "b": {"Fn::Sub": "dev/${Vpc.Id}"},
        "c": {"Fn::Join": ["-", ["dev", {"Ref": "Vpc"}]]},
    }
    assert references(given) == {("Vpc", None), ("Vpc", "Id"), ("Stage", None)}


@pytest.mark.parametrize("given", [{"Ref": "Nobody"}, {"Fn::GetAtt": ["Proxy", "Endpoint"]}])
def test_what_is_not_there_is_told_by_its_name(given: Any, values: Values) -> None:
    """Lost if red: an empty value where a name should be, which an emulator takes."""
    with pytest.raises(DeployError, match=r"Nobody|Endpoint"):
        values.resolve(given)
