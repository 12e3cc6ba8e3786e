"""The HTTP API as Chalice blueprints: parse, authorise, call one domain function, answer."""
