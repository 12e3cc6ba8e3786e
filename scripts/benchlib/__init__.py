"""The load harness behind scripts/bench."""
