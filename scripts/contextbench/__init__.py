"""What `scripts/bench-context` measures, on a server and an embedded Postgres of its own."""
