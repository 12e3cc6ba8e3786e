"""scripts/check-policies: each function may do what it does, and no more."""
