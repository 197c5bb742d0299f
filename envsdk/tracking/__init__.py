"""Where a run's metrics go: `metrics.jsonl`, TensorBoard, and trackers of your own."""

from envsdk.tracking.jsonl import JsonlTracker, read_metrics
from envsdk.tracking.tracker import Tracker, TrackerGroup, load_tracker, open_trackers

__all__ = [
    "JsonlTracker",
    "Tracker",
    "TrackerGroup",
    "load_tracker",
    "open_trackers",
    "read_metrics",
]
