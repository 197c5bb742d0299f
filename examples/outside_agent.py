"""An agent of your own plays FrozenLake with a model behind `envsdk serve`, and leaves training data.

    export ENVSDK_ENDPOINT_TOKEN=$(openssl rand -hex 24)
    envsdk serve agentic_async.yaml --out played --fixed-sampling          in one terminal
    python examples/outside_agent.py --episodes 20                         in another

The agent here is as plain as can be: it shows the model the episode so far, as the policy was trained
(`context: append`), and plays what it answers. Yours may plan, search or call tools; it only has to ask
through the `base_url` of its session, with any client for OpenAI's API. What the model sampled is recorded
token by token where it is served, and `--out` keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

import envsdk
from envsdk.config import load_config


def call(url: str, key: str, body: dict[str, Any]) -> Any:
    """POST JSON with a bearer token."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.read().decode()}") from error
    except urllib.error.URLError as error:
        raise SystemExit(f"{url}: {error.reason}; is `envsdk serve` running there?") from error


def play(
    env: envsdk.TextEnv, system: str, base_url: str, key: str, model: str, seed: int
) -> tuple[float, bool]:
    """One episode; its reward, and whether the goal was reached."""
    messages = [{"role": "system", "content": system}]
    observation, _ = env.reset(seed=seed)
    total = 0.0
    while True:
        messages.append({"role": "user", "content": observation})
        answer = call(f"{base_url}/chat/completions", key, {"model": model, "messages": messages})
        message = answer["choices"][0]["message"]
        messages.append(message)
        observation, reward, terminated, truncated, info = env.step(message["content"])
        total += float(reward)
        if terminated or truncated:
            return total, bool(info["success"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    if not arguments.url.startswith(("http://", "https://")):
        parser.error(f"--url {arguments.url}: must begin with http:// or https://")
    token = os.environ.get("ENVSDK_ENDPOINT_TOKEN")
    if not token:
        parser.error("ENVSDK_ENDPOINT_TOKEN must hold the token that `envsdk serve` was started with")

    lake = load_config("agentic_async.yaml").config.custom_envs["FrozenLake"]
    env = envsdk.make(lake.env_type, **lake.env_config)
    num_successes = 0
    for seed in range(arguments.episodes):
        opening = {"tag": "FrozenLake", "index": seed, "seed": seed}
        session = call(f"{arguments.url}/sessions", token, opening)
        reward, success = play(
            env, lake.agent_system_template, session["base_url"], session["api_key"], session["model"], seed
        )
        result = {"reward": reward, "success": success}
        call(f"{arguments.url}/sessions/{session['id']}/end", token, result)
        num_successes += success
    print(f"{num_successes} of {arguments.episodes} lakes crossed")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted: `envsdk serve` keeps the episodes that ended", file=sys.stderr)
        sys.exit(130)
