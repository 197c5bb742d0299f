"""Many requests at once."""

import asyncio


async def fetch_all(urls, fetch, *, at_once=4, on_done=None):
    """Results of `await fetch(url)` in the order of `urls`; an exception stands in the place of a result.

    Args:
        at_once: How many run at the same time.
        on_done: Called with each url when it is done, in the order in which they get done.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(url):
        async with slots:
            try:
                return await fetch(url)
            except Exception as error:
                return error
            finally:
                if on_done is not None:
                    on_done(url)

    return await asyncio.gather(*(one(url) for url in urls))


async def first(urls, fetch):
    """The first result that is no exception, and its url; None where all fail. The others are cancelled."""
    tasks = {asyncio.ensure_future(fetch(url)): url for url in urls}
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda task: urls.index(tasks[task])):
            if task.exception() is None:
                for other in waiting:
                    other.cancel()
                return tasks[task], task.result()
    return None
