"""Distillation: from the timeline to facts, one bounded slice after another."""
