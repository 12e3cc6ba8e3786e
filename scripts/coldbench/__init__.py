"""scripts/bench-coldstart: what starts of the packaged functions cost."""
