"""OrderDesk: look things up and place orders, by calling tools."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/OrderDesk-v1",
    entry_point="envsdk.envs.order_desk.env:OrderDeskEnv",
    isolation=Isolation.INLINE,
    description="Look up customers and stock with tools, and place the orders that are asked for.",
    action_format='Reply with a call: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>',
    needs={"jsonschema": "pip install 'envsdk[tools]'"},
)
