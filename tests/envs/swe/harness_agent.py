"""An agent program that stands in no package: it runs inside a sandbox, with the standard library alone.

    python harness_agent.py [forgets | delegates | fails | sleeps]

It runs the bash block of each reply, until a reply says SUBMIT or the endpoint refuses. `forgets` cuts its
history after each turn, `delegates` has a helper with a conversation of its own look at each command first.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request


def ask(messages):
    """The policy's reply, which is added to the conversation."""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"model": os.environ["ENVSDK_MODEL"], "messages": messages}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            reply = json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code} {error.read().decode()}")
    messages.append({"role": "assistant", "content": reply})
    return reply


def main(how):
    with open(os.environ["HARNESS_TASK"]) as file:
        task = {"role": "user", "content": file.read()}
    messages = [task]
    while True:
        reply = ask(messages)
        if how == "fails":
            sys.exit("I give up")
        if how == "sleeps":
            time.sleep(3600)
        if "SUBMIT" in reply:
            return
        command = re.search(r"```bash\n(.*?)\n```", reply, re.DOTALL)
        if how == "delegates":
            ask([{"role": "user", "content": "Is this command safe?\n" + reply}])
        ended = subprocess.run(
            ["bash", "-c", command[1] if command else "echo no command"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        messages.append({"role": "user", "content": ended.stdout.decode(errors="replace") or "(nothing)"})
        if how == "forgets":
            messages = [task, messages[-1]]


main((sys.argv[1:] or [""])[0])
