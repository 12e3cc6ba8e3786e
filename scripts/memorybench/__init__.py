"""What `scripts/bench-memory` measures, on an embedded Postgres of its own."""
