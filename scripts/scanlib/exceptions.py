"""What a scan finds and is meant so, written beside the resource, with the reason.

    Metadata:
      checkov:
        skip:
          - id: CKV_AWS_120
            comment: Answers differ by caller and moment.

That is checkov's own form. It is read here and not by checkov, which would not look at what SAM
makes of a resource (a stage, a function's URL) and could not say that an exception is no longer
needed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """A check that a resource does not pass."""

    resource: str
    check: str
    about: str = ""


@dataclass(frozen=True, kw_only=True, order=True)
class Excepted:
    """A check that a resource need not pass."""

    resource: str
    check: str
    reason: str


def exceptions_of(template: Mapping[str, Any]) -> list[Excepted]:
    """All that the template as packaged, with SAM's types, excepts."""
    return sorted(
        Excepted(resource=name, check=one["id"], reason=(one.get("comment") or "").strip())
        for name, resource in template["Resources"].items()
        for one in resource.get("Metadata", {}).get("checkov", {}).get("skip", [])
    )


def complaints(
    findings: Iterable[Finding], excepted: Collection[Excepted], resources: Collection[str]
) -> list[str]:
    """What is wrong: findings without an exception, exceptions without a reason or a finding.

    `resources` are the ids that the template as packaged has. A resource that SAM makes has an id
    that begins with that of the one it is made for.
    """
    by_key = {(one.resource, one.check): one for one in excepted}
    told, needed = [], set()
    for finding in sorted(findings):
        key = (_source(finding.resource, resources), finding.check)
        if key in by_key:
            needed.add(key)
        else:
            told.append(f"{finding.resource}: {finding.check} {finding.about}".rstrip())
    for key, one in by_key.items():
        if not one.reason:
            told.append(f"{one.resource}: the exception from {one.check} has no reason")
        if key not in needed:
            told.append(f"{one.resource}: the exception from {one.check} is not needed")
    return told


def _source(made: str, resources: Collection[str]) -> str:
    if made in resources:
        return made
    return max((one for one in resources if made.startswith(one)), key=len, default=made)
