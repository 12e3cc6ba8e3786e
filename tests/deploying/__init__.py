"""`scripts/deploy` against an AWS account in memory."""
