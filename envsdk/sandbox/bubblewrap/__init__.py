"""Sandboxes by bubblewrap and overlayfs, without a daemon and without root."""

from envsdk.sandbox.bubblewrap.backend import BubblewrapBackend

__all__ = ["BubblewrapBackend"]
