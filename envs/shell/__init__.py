"""What the environments share that are played by shell commands in a sandbox."""
