"""What `scripts/deploy` does: packages, deploys and destroys the stack, on AWS or an emulator."""
