"""Agreement with upstream, case by case."""

import numpy as np
import pytest

from envsdk.envs.webshop.goals import GoalKind
from envsdk.envs.webshop.pages import render
from envsdk.envs.webshop.reward import score_purchase
from envsdk.envs.webshop.session import Session
from envsdk.envs.webshop.store import GOALS, Store

KINDS: tuple[GoalKind, ...] = ("human", "synthetic")


class WithRecordedSearches:
    """A store in which Lucene's recorded results stand for the search."""

    def __init__(self, store: Store, searches: dict) -> None:
        self._store = store
        positions = {store.card(index)[0]: index for index in range(store.num_products)}
        self._searches = {
            query: [positions[asin] for asin in asins if asin in positions]
            for query, asins in searches.items()
        }

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def search(self, query: str):
        return self._searches[query]


def test_products_are_loaded_as_upstream_loads_them(recordings, store):
    loaded = recordings["loaded"]
    assert store.num_products == len(loaded)
    assert store.manifest["skipped"] == {"asin": 2, "duplicate": 1, "bad": 0}
    for index, (asin, expected) in enumerate(loaded.items()):
        product = store.product(index)
        assert product.asin == asin
        assert [
            product.title,
            product.description,
            list(product.bullets),
            list(product.pricing),
            product.price_tag,
            {name: list(values) for name, values in product.options.items()},
            list(product.attributes),
            product.category,
            product.query,
            product.product_category,
        ] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_goals_their_limits_and_their_order_are_upstreams(recordings, store, kind):
    expected = recordings["goals"][kind]
    assert store.num_goals(kind) == len(expected)
    cumulative = np.load(store.folder / GOALS[kind])["cumulative"]
    weights = np.diff(cumulative, prepend=0.0)
    for number, (asin, text, attributes, options, price_upper, weight) in enumerate(expected):
        goal = store.goal(kind, number)
        assert (goal.wanted.asin, goal.text, list(goal.attributes)) == (asin, text, attributes)
        assert goal.options == (options if isinstance(options, dict) else tuple(options))
        assert goal.price_upper == price_upper
        assert weights[number] == pytest.approx(weight)


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_and_their_components_are_upstreams(recordings, store, kind):
    positions = {store.card(index)[0]: index for index in range(store.num_products)}
    for case in recordings["rewards"][kind]:
        score = score_purchase(
            store.product(positions[case["asin"]]),
            store.goal(kind, case["goal_index"]),
            price=case["price"],
            options=case["options"],
        )
        assert score.reward == case["reward"], case
        assert score.components() == case["info"], case


@pytest.mark.parametrize("kind", KINDS)
def test_transcripts_replay_to_the_letter(recordings, store, kind):
    catalogue = WithRecordedSearches(store, recordings["searches"][kind])
    for transcript in recordings["transcripts"][kind]:
        session = Session(
            catalogue=catalogue,
            goal=store.goal(kind, transcript["goal_index"]),
            show_attributes=transcript["show_attrs"],
        )
        for step in transcript["steps"]:
            score = None if step["action"] is None else session.act(step["action"]).score
            where = f"{transcript['id']}, after {step['action']!r}"
            assert render(session, transcript["obs_mode"]) == step["observation"], where
            assert list(session.clickables()) == step["clickables"], where
            assert (0.0 if score is None else score.reward) == step["reward"], where
            assert (score is not None) == step["done"], where


@pytest.mark.parametrize("kind", KINDS)
def test_first_pages_are_lucenes_on_98_percent_of_the_queries(recordings, store, kind):
    searches = recordings["searches"][kind]
    same = 0
    for query, asins in searches.items():
        session = Session(catalogue=store, goal=store.goal(kind, 0))
        session.act(f"search[{query}]")
        same += [store.card(index)[0] for index in session.shown()] == asins[:10]
    assert same >= 0.98 * len(searches)
