"""Where a run's metrics and episodes go: `metrics.jsonl`, TensorBoard, services, and trackers of your own."""

from envsdk.tracking.group import TrackerGroup, load_tracker, open_trackers
from envsdk.tracking.jsonl import JsonlTracker, read_metrics
from envsdk.tracking.tracker import Ending, Tracker

__all__ = [
    "Ending",
    "JsonlTracker",
    "Tracker",
    "TrackerGroup",
    "load_tracker",
    "open_trackers",
    "read_metrics",
]
