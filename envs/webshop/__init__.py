"""WebShop: buy what an instruction asks for, in a shop of text pages."""

from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.envs.webshop.env import WebShopEnv

SPEC = EnvSpec(
    id="envsdk/WebShop-v1",
    entry_point="envsdk.envs.webshop:WebShopEnv",
    max_steps=15,
    isolation=Isolation.INLINE,
    description="Search a shop, choose a product and its options, and buy what the instruction asks for.",
    action_format=(
        "Reply with one action: <action>search[words]</action>, or <action>click[label]</action> "
        "with a label of the page."
    ),
    text_pieces=(r" \[SEP\] ",),
    needs=dict.fromkeys(("bm25s", "regex", "Stemmer"), "pip install 'envsdk[webshop]'"),
)

__all__ = ["SPEC", "WebShopEnv"]
