"""Files of projects that are not translated: recognized, and answered with where their names stand."""

from __future__ import annotations

import re

from envsdk.config.foreign.row import read_data

OTHERS = read_data("envsdk.config.foreign", "others.toml")
_OURS = r"(custom_envs|train_env_manager|rewards|actor_train|actor_infer|extends):"
_SCRIPTS = (".sh", ".bash", ".slurm", ".py", ".toml", ".ipynb")


def said_of_other_project(suffix: str, text: str) -> str | None:
    """What is said of a file of another project, or of a script; None where it may be one of ours."""
    is_script = suffix in _SCRIPTS
    if not is_script and re.search(rf"^{_OURS}", text, re.M):
        return None
    for name, known in OTHERS.items():
        begins = rf"^({known['line']})"
        if re.search(known["call"] if is_script else begins, text, re.M if is_script else re.M | re.S):
            what = "script" if is_script else "file"
            return (
                f"is a {what} for {name}. Its settings have other names here, which docs/coming-from.md "
                "lists; start from a shipped example, such as rlvr_async.yaml or agentic_async.yaml"
            )
    return "is a script: give the YAML file that it names" if is_script else None
