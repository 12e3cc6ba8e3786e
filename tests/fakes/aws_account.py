"""An AWS account in memory, behind real boto3 clients, which check each request's shape.

It holds one stack, its functions and a bucket. `calls` is what was asked, in order; `answers` sets
what a call answers or raises in place of what it would.
"""

import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import boto3
from botocore.config import Config

from scripts.deploying.account import Account

READING = ("Describe", "Get", "Head", "List")
Payload = dict[str, Any]


class Refusal(Exception):
    """What a call is refused with."""

    def __init__(self, code: str, message: str = "no", status: int = 400) -> None:
        super().__init__(code)
        self.status, self.answer = status, {"Error": {"Code": code, "Message": message}}


class FakeAws:
    """The account; functions answer by `functions`, a handler for each logical id."""

    region, account_id = "eu-west-1", "111122223333"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, Callable[[Payload], Any]] = {}
        self.stack: Payload | None = None
        self.objects: dict[str, bytes] | None = None
        self.code: dict[str, Payload] = {}
        self.functions: dict[str, Callable[[Payload], Any]] = {}
        self.rolls_back = False
        self._proposed: dict[str, Payload] = {}
        self._events: list[Payload] = []

    def account(self) -> Account:
        """What the deployment is given."""
        return Account(self._client, self.region)

    def changing(self) -> list[str]:
        """What was asked that could change something."""
        return [one for one in self.calls if not one.partition(".")[2].startswith(READING)]

    def _client(self, service: str) -> Any:
        client = boto3.client(
            service,
            region_name=self.region,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"total_max_attempts": 1}),
        )
        client.meta.events.register("before-parameter-build", _remember)
        client.meta.events.register("before-call", self._answer)
        return client

    def _answer(self, model: Any, context: Payload, **_: Any) -> tuple[Any, Payload]:
        name = f"{model.service_model.service_name}.{model.name}"
        self.calls.append(name)
        given = context["given"]
        try:
            special = self.answers.get(name)
            handler = special or getattr(self, "_" + name.replace(".", "_"), lambda _: {})
            return SimpleNamespace(status_code=200), handler(given) or {}
        except Refusal as refusal:
            return SimpleNamespace(status_code=refusal.status), refusal.answer

    def _sts_GetCallerIdentity(self, _: Payload) -> Payload:
        return {"Account": self.account_id, "Arn": f"arn:aws:iam::{self.account_id}:user/kim"}

    # ── the bucket ───────────────────────────────────────────────────────────────────────────
    def _s3_HeadBucket(self, _: Payload) -> None:
        if self.objects is None:
            raise Refusal("404", status=404)

    def _s3_CreateBucket(self, _: Payload) -> None:
        self.objects = {}

    def _s3_HeadObject(self, given: Payload) -> None:
        if given["Key"] not in (self.objects or {}):
            raise Refusal("404", status=404)

    def _s3_PutObject(self, given: Payload) -> None:
        assert self.objects is not None
        body = given["Body"]
        self.objects[given["Key"]] = body if isinstance(body, bytes) else body.read()

    def _s3_ListObjectVersions(self, given: Payload) -> Payload:
        found = [one for one in self.objects or {} if one.startswith(given["Prefix"])]
        return {"Versions": [{"Key": one, "VersionId": "1"} for one in found]}

    def _s3_DeleteObjects(self, given: Payload) -> None:
        for one in given["Delete"]["Objects"]:
            (self.objects or {}).pop(one["Key"])

    # ── the stack ────────────────────────────────────────────────────────────────────────────
    def _cloudformation_DescribeStacks(self, given: Payload) -> Payload:
        if self.stack is None:
            raise Refusal("ValidationError", f"Stack {given['StackName']} does not exist")
        return {"Stacks": [{"StackId": "id", "StackName": "palimpsest-dev", **self.stack}]}

    def _cloudformation_CreateChangeSet(self, given: Payload) -> None:
        key = given["TemplateURL"].partition(".amazonaws.com/")[2]
        template = (self.objects or {})[key].decode()
        self._proposed[given["ChangeSetName"]] = {"template": template, **given}
        if self.stack is None:
            self.stack = {"StackStatus": "REVIEW_IN_PROGRESS", "Outputs": [], "Parameters": []}

    def _cloudformation_DescribeChangeSet(self, given: Payload) -> Payload:
        proposed = self._proposed[given["ChangeSetName"]]
        assert self.stack is not None
        if proposed["template"] == self.stack.get("template"):
            return {
                "Status": "FAILED",
                "StatusReason": "The submitted information didn't contain changes.",
            }
        change = {
            "Action": "Modify",
            "LogicalResourceId": "Migrate",
            "ResourceType": "AWS::Lambda::Function",
            "Replacement": "False",
            "Details": [{"Target": {"Attribute": "Properties", "Name": "Code"}}],
        }
        return {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": change}]}

    def _cloudformation_ExecuteChangeSet(self, given: Payload) -> None:
        proposed = self._proposed.pop(given["ChangeSetName"])
        assert self.stack is not None
        done = "CREATE" if proposed["ChangeSetType"] == "CREATE" else "UPDATE"
        if self.rolls_back:
            end = {"CREATE": "ROLLBACK_COMPLETE", "UPDATE": "UPDATE_ROLLBACK_COMPLETE"}
            self.stack["StackStatus"] = end[done]
            self._events.append(
                {**_event("Stream", "UPDATE_FAILED"), "ResourceStatusReason": "no such role"}
            )
            return
        before = {one["ParameterKey"]: one["ParameterValue"] for one in self.stack["Parameters"]}
        self.stack.update(
            StackStatus=f"{done}_COMPLETE",
            template=proposed["template"],
            Parameters=[
                {
                    "ParameterKey": one["ParameterKey"],
                    "ParameterValue": one.get("ParameterValue", before.get(one["ParameterKey"])),
                }
                for one in proposed.get("Parameters", [])
            ],
            Outputs=[
                {"OutputKey": name, "OutputValue": f"https://{name.lower()}.example/"}
                for name in ("ApiUrl", "StreamUrl")
            ],
        )
        for name, one in processed(proposed["template"])["Resources"].items():
            if one["Type"] == "AWS::Lambda::Function":
                layers = [layer["Ref"] for layer in one["Properties"].get("Layers", [])]
                self.code[name] = {**one["Properties"]["Code"], "layers": layers}
        self._events.append(_event("palimpsest-dev", f"{done}_COMPLETE"))

    def _cloudformation_DeleteStack(self, _: Payload) -> None:
        assert self.stack is not None
        if self.stack["StackStatus"] == "REVIEW_IN_PROGRESS":
            self.stack = None
        else:
            self.stack["StackStatus"] = "DELETE_COMPLETE"

    def _cloudformation_DescribeStackEvents(self, _: Payload) -> Payload:
        return {"StackEvents": self._events[::-1]}

    def _cloudformation_GetTemplate(self, given: Payload) -> Payload:
        assert self.stack is not None
        proposed = self._proposed.get(given.get("ChangeSetName", ""), self.stack)
        text = proposed["template"]
        whole = given["TemplateStage"] == "Original"
        return {"TemplateBody": text if whole else json.dumps(processed(text))}

    def _cloudformation_DescribeStackResource(self, given: Payload) -> Payload:
        if given["LogicalResourceId"] not in self.code:
            raise Refusal("ValidationError", "Resource does not exist for stack")
        return {"StackResourceDetail": {"PhysicalResourceId": given["LogicalResourceId"]}}

    def _cloudformation_ListStackResources(self, _: Payload) -> Payload:
        assert self.stack is not None
        resources = processed(self.stack["template"])["Resources"]
        return {
            "StackResourceSummaries": [
                {"LogicalResourceId": name, "PhysicalResourceId": name, "ResourceType": one["Type"]}
                for name, one in resources.items()
            ]
        }

    # ── functions ────────────────────────────────────────────────────────────────────────────
    def _lambda_GetFunctionConfiguration(self, given: Payload) -> Payload:
        return {"Layers": [{"Arn": one} for one in self.code[given["FunctionName"]]["layers"]]}

    def _lambda_GetFunction(self, _: Payload) -> Payload:
        return {"Configuration": {"State": "Active", "LastUpdateStatus": "Successful"}}

    def _lambda_UpdateFunctionCode(self, given: Payload) -> None:
        self.code[given["FunctionName"]] |= {key: given[key] for key in ("S3Bucket", "S3Key")}

    def _lambda_UpdateFunctionConfiguration(self, given: Payload) -> None:
        self.code[given["FunctionName"]]["layers"] = given["Layers"]

    def _lambda_PublishLayerVersion(self, given: Payload) -> Payload:
        arn = f"arn:aws:lambda:eu-west-1:111122223333:layer:{given['LayerName']}"
        return {"LayerArn": arn, "Version": 7, "LayerVersionArn": f"{arn}:7"}

    def _lambda_Invoke(self, given: Payload) -> Payload:
        payload = json.loads(given["Payload"])
        try:
            answer = self.functions[given["FunctionName"]](payload)
        except RuntimeError as exc:
            said = {"errorType": "MigrationError", "errorMessage": str(exc)}
            return {"FunctionError": "Unhandled", "Payload": io.BytesIO(json.dumps(said).encode())}
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps(answer).encode())}

    def _kms_DescribeKey(self, given: Payload) -> Payload:
        return {"KeyMetadata": {"KeyId": given["KeyId"], "KeyState": "Enabled"}}


def processed(template: str) -> Payload:
    """What SAM's transform makes of a template, as far as is asked here."""
    found: Payload = json.loads(template)
    resources: Payload = {}
    renamed = {
        name: name + one["Properties"]["ContentUri"]["Key"][-10:].partition(".")[0]
        for name, one in found["Resources"].items()
        if one["Type"] == "AWS::Serverless::LayerVersion"
    }
    for name, one in found["Resources"].items():
        properties = one.get("Properties", {})
        if one["Type"] == "AWS::Serverless::Function":
            code = {
                "S3Bucket": properties["CodeUri"]["Bucket"],
                "S3Key": properties["CodeUri"]["Key"],
            }
            layers = [{"Ref": renamed[layer["Ref"]]} for layer in properties.get("Layers", [])]
            one = {"Type": "AWS::Lambda::Function", "Properties": {"Code": code, "Layers": layers}}
        elif name in renamed:
            uri = properties["ContentUri"]
            content = {"S3Bucket": uri["Bucket"], "S3Key": uri["Key"]}
            one = {"Type": "AWS::Lambda::LayerVersion", "Properties": {"Content": content}}
        resources[renamed.get(name, name)] = one
    return {**found, "Resources": resources}


def _remember(params: Payload, context: Payload, **_: Any) -> None:
    context["given"] = params


def _event(logical_id: str, status: str) -> Payload:
    return {
        "EventId": f"{logical_id}-{status}",
        "LogicalResourceId": logical_id,
        "ResourceStatus": status,
    }
