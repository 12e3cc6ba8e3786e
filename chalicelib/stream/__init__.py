"""The routes that stream: their handler, SSE, and the loop that lets Lambda stream."""
