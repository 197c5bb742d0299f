"""Makes rayjob_schema.json from KubeRay's definition of a RayJob.

    python tests/recipes/make_rayjob_schema.py ray.io_rayjobs.yaml

The file is helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of KubeRay's repository (Apache-2.0); the one
in use is of commit feeaf72, August 2026. Descriptions are left out, the schema of a pod is kept once, and
keys that Kubernetes would drop in silence are errors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).with_name("rayjob_schema.json")
POD = "#/$defs/pod"


def main() -> None:
    """Write the schema beside this file."""
    definition = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
    schema = version["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]
    pods: list[Any] = []
    strict = _strict(schema, pods)
    assert all(pod == pods[0] for pod in pods)
    strict["required"] = ["apiVersion", "kind", "metadata", "spec"]
    strict["$defs"] = {"pod": pods[0]}
    TARGET.write_text(json.dumps(strict, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


def _strict(node: Any, pods: list[Any], *, names: bool = False) -> Any:
    """`names`: the keys of this mapping are names of properties, not words of the schema."""
    if isinstance(node, list):
        return [_strict(each, pods) for each in node]
    if not isinstance(node, dict):
        return node
    if names:
        return {
            name: _pod(each, pods) if _is_pod(name, each) else _strict(each, pods)
            for name, each in node.items()
        }
    kept = {
        word: _strict(value, pods, names=word == "properties")
        for word, value in node.items()
        if word not in ("description", "default") and not word.startswith("x-kubernetes")
    }
    if node.get("x-kubernetes-int-or-string"):
        kept.pop("anyOf", None)
        kept["type"] = ["integer", "string"]
    if "properties" in kept and "additionalProperties" not in kept:
        kept["additionalProperties"] = False
    return kept


def _is_pod(name: str, node: Any) -> bool:
    return name in ("template", "submitterPodTemplate") and "spec" in node.get("properties", {})


def _pod(node: Any, pods: list[Any]) -> dict[str, str]:
    pods.append(_strict(node, []))
    return {"$ref": POD}


if __name__ == "__main__":
    main()
