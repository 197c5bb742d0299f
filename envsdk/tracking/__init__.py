"""Where a run's metrics and episodes go: `metrics.jsonl`, TensorBoard, services, and trackers of your own."""

from envsdk.tracking.group import TrackerGroup, load_tracker, open_trackers
from envsdk.tracking.jsonl import BENCH, JsonlTracker, metric_files, read_metrics, read_run_metrics
from envsdk.tracking.tracker import Ending, Tracker

__all__ = [
    "BENCH",
    "Ending",
    "JsonlTracker",
    "Tracker",
    "TrackerGroup",
    "load_tracker",
    "metric_files",
    "open_trackers",
    "read_metrics",
    "read_run_metrics",
]
