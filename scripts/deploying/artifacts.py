"""The bucket of what is deployed: zips and templates, each under the hash of its content."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from .account import Account
from .errors import DeployError

# which property of which type names a file of the package
_FILES: Final = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Serverless::LayerVersion": "ContentUri",
}
_KEPT_DAYS: Final = 90


class Bucket:
    """The account's artifact bucket of this region, one for all stages; made if it is not there.

    `tls` is False for an emulator, which speaks plain HTTP.
    """

    def __init__(self, account: Account, stage: str, *, tls: bool = True) -> None:
        self._account, self._stage, self._tls = account, stage, tls
        self._s3 = account.client("s3")
        self.name = f"palimpsest-artifacts-{account.id}-{account.region}"
        # someone else's bucket of that name is not written to
        self._own = {"Bucket": self.name, "ExpectedBucketOwner": account.id}

    def ensure(self) -> bool:
        """Make the bucket as it has to be; whether it was not there before."""
        try:
            self._s3.head_bucket(**self._own)
            made = False
        except ClientError as exc:
            if exc.response["Error"]["Code"] != "404":
                raise
            where = {"LocationConstraint": self._account.region}
            more = (
                {} if self._account.region == "us-east-1" else {"CreateBucketConfiguration": where}
            )
            self._s3.create_bucket(Bucket=self.name, ObjectOwnership="BucketOwnerEnforced", **more)
            made = True
        # each time: what someone has loosened is tightened again
        closed = (
            "BlockPublicAcls",
            "IgnorePublicAcls",
            "BlockPublicPolicy",
            "RestrictPublicBuckets",
        )
        self._s3.put_public_access_block(
            **self._own, PublicAccessBlockConfiguration=dict.fromkeys(closed, True)
        )
        self._s3.put_bucket_encryption(
            **self._own,
            ServerSideEncryptionConfiguration={
                "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
            },
        )
        self._s3.put_bucket_versioning(**self._own, VersioningConfiguration={"Status": "Enabled"})
        if self._tls:
            self._s3.put_bucket_policy(**self._own, Policy=json.dumps(self._policy()))
        self._s3.put_bucket_lifecycle_configuration(
            **self._own, LifecycleConfiguration={"Rules": [_LIFECYCLE]}
        )
        return made

    def _policy(self) -> dict[str, Any]:
        arn = f"arn:{self._account.partition}:s3:::{self.name}"
        return {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "OverTlsOnly",
                    "Effect": "Deny",
                    "Principal": "*",
                    "Action": "s3:*",
                    "Resource": [arn, f"{arn}/*"],
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                }
            ],
        }

    def put(self, path: Path) -> str:
        """Upload a file unless it is there; its key."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        key = f"{self._stage}/{digest[:40]}{path.suffix}"
        if not self._has(key):
            self._s3.upload_file(
                str(path), self.name, key, ExtraArgs={"ExpectedBucketOwner": self._account.id}
            )
        return key

    def put_template(self, text: str) -> str:
        """Upload a template unless it is there; its URL."""
        key = f"{self._stage}/{hashlib.sha256(text.encode()).hexdigest()[:40]}.json"
        if not self._has(key):
            self._s3.put_object(**self._own, Key=key, Body=text.encode())
        suffix = "amazonaws.com.cn" if self._account.partition == "aws-cn" else "amazonaws.com"
        return f"https://{self.name}.s3.{self._account.region}.{suffix}/{key}"

    def _has(self, key: str) -> bool:
        try:
            self._s3.head_object(**self._own, Key=key)
        except ClientError as exc:
            if exc.response["Error"]["Code"] != "404":
                raise
            return False
        return True

    def empty(self) -> bool:
        """Delete what the stage has here, and the bucket if nothing else is in it; whether so."""
        try:
            for batch in self._versions(f"{self._stage}/"):
                self._s3.delete_objects(**self._own, Delete={"Objects": batch, "Quiet": True})
            if next(self._versions(""), None):
                return False
            self._s3.delete_bucket(**self._own)
        except ClientError as exc:
            if exc.response["Error"]["Code"] not in ("NoSuchBucket", "404"):
                raise
        return True

    def _versions(self, prefix: str) -> Iterator[list[dict[str, str]]]:
        pages = self._s3.get_paginator("list_object_versions")
        for page in pages.paginate(**self._own, Prefix=prefix):
            found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            if found:
                yield [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]


_LIFECYCLE: Final = {
    "ID": "expire-what-was-replaced",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "NoncurrentVersionExpiration": {"NoncurrentDays": _KEPT_DAYS},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
}


def upload(template: dict[str, Any], folder: Path, bucket: Bucket) -> dict[str, Any]:
    """Upload what the template names, and give the template that names the uploads."""
    known: dict[str, str] = {}
    resources = {}
    for name, one in template["Resources"].items():
        key = _FILES.get(one.get("Type", ""))
        resources[name] = one
        file = one.get("Properties", {}).get(key) if key else None
        if isinstance(file, str) and not file.startswith("s3://"):
            path = folder / file
            if not path.is_file():
                raise DeployError(f"{name} names {file}, which is not in the package.")
            if file not in known:
                known[file] = bucket.put(path)
            place = {"Bucket": bucket.name, "Key": known[file]}
            resources[name] = {**one, "Properties": {**one["Properties"], key: place}}
    return {**template, "Resources": resources}
