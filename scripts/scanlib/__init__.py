"""What `scripts/scan` runs over a packaged template: a linter, and a scan for security."""
