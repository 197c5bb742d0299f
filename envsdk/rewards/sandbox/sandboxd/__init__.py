"""`envsdk sandboxd`: this machine's sandboxes for E2B's own SDK."""
