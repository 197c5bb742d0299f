"""A sandbox's terminal: keys in, the screen as text out."""

from envsdk.rewards.sandbox.terminal.terminal import Screen, Terminal, open_terminal

__all__ = ["Screen", "Terminal", "open_terminal"]
