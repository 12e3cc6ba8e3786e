"""The stack's queues and functions, worked as the service would work them."""

import json
from typing import Any

from chalice.test import Client

import app as application
from scripts.deploying.emulator.building import Built
from scripts.deploying.emulator.place import Place


class Queue:
    """One of the stack's queues: what the service would hand to its worker, and take back."""

    def __init__(self, place: Place, built: Built, logical_id: str) -> None:
        self._aws = place.client("sqs")
        self.url = built.made[logical_id].ref
        self.arn = built.made[logical_id].attributes["Arn"]
        assert self.waiting() == 0

    def work(self, function: str) -> int:
        """Hand each message to this function and delete it unless that fails; how many."""
        done = 0
        while True:
            found = self._aws.receive_message(QueueUrl=self.url, WaitTimeSeconds=1)
            messages = found.get("Messages", [])
            if not messages:
                return done
            for one in messages:
                invoke(function, sqs_event(self.arn, one))
                self._aws.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])
                done += 1

    def send(self, body: dict[str, str]) -> None:
        """Put a message in."""
        self._aws.send_message(QueueUrl=self.url, MessageBody=json.dumps(body))

    def waiting(self) -> int:
        """Messages that are there, those that are being worked on included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._aws.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)


def sqs_event(arn: str, message: dict[str, Any]) -> dict[str, Any]:
    """The event that Lambda makes of a message."""
    record = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": {},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
    }
    return {"Records": [record]}


def invoke(name: str, event: dict[str, Any]) -> Any:
    """What a function of the app answers; what it raises is the service's failed delivery."""
    with Client(application.app) as client:
        return client.lambda_.invoke(name, event).payload
