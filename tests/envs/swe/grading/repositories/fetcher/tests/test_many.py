import asyncio
import unittest
from unittest.mock import AsyncMock

from fetcher import fetch_all
from fetcher.many import first


class ManyTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.running = self.most = 0

    async def fetch(self, url):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if url == "bad":
            raise ValueError(url)
        return url.upper()

    async def test_results_are_in_order(self):
        self.assertEqual(await fetch_all(["b", "a", "c"], self.fetch), ["B", "A", "C"])

    async def test_an_error_stands_in_place_of_a_result(self):
        found = await fetch_all(["a", "bad", "c"], self.fetch)
        self.assertEqual([found[0], found[2]], ["A", "C"])
        self.assertIsInstance(found[1], ValueError)
        self.assertEqual(found[1].args, ("bad",))

    async def test_not_too_many_at_once(self):
        await fetch_all(list("abcdefgh"), self.fetch, at_once=3)
        self.assertEqual(self.most, 3)

    async def test_each_is_reported_when_done(self):
        seen = []
        await fetch_all(["a", "bad"], self.fetch, on_done=seen.append)
        self.assertCountEqual(seen, ["bad", "a"])

    async def test_each_is_fetched_once(self):
        fetch = AsyncMock(return_value=1)
        self.assertEqual(sum(await fetch_all(["a", "b"], fetch)), 2)
        fetch.assert_any_await("b")
        self.assertEqual(fetch.await_count, 2)


def test_the_first_that_works():
    async def fetch(url):
        if url == "bad":
            raise OSError(url)
        await asyncio.sleep(0 if url == "quick" else 60)
        return len(url)

    assert asyncio.run(first(["slow", "bad", "quick"], fetch)) == ("quick", 5)
    assert asyncio.run(first(["bad"], fetch)) is None
