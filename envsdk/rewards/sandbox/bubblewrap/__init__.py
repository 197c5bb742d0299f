"""Sandboxes by bubblewrap and overlayfs, without a daemon and without root."""

from envsdk.rewards.sandbox.bubblewrap.backend import BubblewrapBackend

__all__ = ["BubblewrapBackend"]
