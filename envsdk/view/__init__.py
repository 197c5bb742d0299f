"""`envsdk view FOLDER`: look at runs and data sets in a browser, offline."""

from envsdk.view.command import main

__all__ = ["main"]
