"""The OpenAI-compatible HTTP endpoint: an outside agent plays as the policy, and its tokens are recorded.

    open a session -> (request -> reply recorded)* -> end it with a reward -> Trajectory

`Endpoint` in `server` is the way in; `docs/endpoint.md` tells how to use it.
"""
