"""The least that a function can be, and what the others are measured beside."""


def handler(event: object, context: object) -> dict[str, object]:
    """Answer."""
    return {"statusCode": 200, "body": "hello"}
