"""One ASGI origin over the Chalice app and the stream handler, for a laptop and for containers."""
