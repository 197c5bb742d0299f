import asyncio
import logging
import unittest

from oddities import Point, Shade, Stack, check, chunks, divide, later, mean, old, parse, slug


class Base(unittest.TestCase):
    longMessage = True

    def assertSlug(self, text, wanted, msg=None):
        self.assertEqual(slug(text), wanted, msg)

    def assertEqual(self, first, second, msg=None):
        super().assertEqual(first, second, msg)

    def same_points(self, first, second, msg=None):
        if abs(first.x - second.x) > 0.5:
            raise self.failureException(msg or "far apart")


class CasesTest(Base):
    def setUp(self):
        self.addTypeEqualityFunc(Point, self.same_points)
        self.__stack = Stack([1])
        self.addCleanup(lambda: self.assertEqual(len(self.__stack), 1))
        self.assertTrue(self.__stack)

    def tearDown(self):
        self.assertFalse(len(self.__stack) > 1)

    def test_helpers(self):
        self.assertSlug("A b", "a-b")
        for text, wanted in (("A", "a"), ("", "")):
            with self.subTest(text=text):
                self.assertSlug(text, wanted, msg="slug")
        eq = self.assertEqual
        eq(slug("x"), "x")
        self.assertEqual(first=slug("x"), second="x")
        assert slug("x") == "x"

    def test_equality_of_ones_own(self):
        self.assertEqual(Point(1, 1), Point(1.2, 5))
        with self.assertRaises(AssertionError):
            self.assertEqual(Point(1, 1), Point(9, 1))

    def test_kinds(self):
        self.assertListEqual(list(chunks("abc", 2)), [["a", "b"], ["c"]])
        self.assertDictEqual(parse("a=1"), {"a": 1})
        self.assertSetEqual(set(slug("ab")), {"b", "a"})
        self.assertTupleEqual(tuple(chunks("a", 1)), (["a"],))
        self.assertSequenceEqual(list(Stack([1, 2])), (2, 1))
        self.assertMultiLineEqual(slug("a\nb"), "a-b")
        self.assertCountEqual(Stack("aab"), "aba")
        self.assertAlmostEqual(mean([1, 2, 2]), 1.67, 2)
        self.assertAlmostEqual(mean([1, 2]), 1.6, delta=0.2)
        self.assertNotAlmostEqual(mean([1, 2]), 1.6)
        self.assertGreaterEqual(len(Stack([1])), 1)
        self.assertRegex(slug("A1"), r"^[a-z]\d$")
        self.assertNotRegex(slug("A1"), "A")
        self.assertIsInstance(Shade.DARK, Shade)
        self.assertNotIsInstance(slug("a"), bytes)
        self.assertIs(Shade("dark"), Shade.DARK)
        self.assertIsNone(check(1) and None)
        self.assertIn("a", parse("a=1"), "the key")

    def test_raising(self):
        with self.assertRaises(ZeroDivisionError, msg="of course") as caught:
            divide(1, 0)
        self.assertEqual(caught.exception.args[0], "1 by zero")
        self.assertRaisesRegex(ValueError, "no value in 'a'", parse, "a")
        with self.assertRaisesRegex(ValueError, "nothing"), self.assertRaises(TypeError):
            mean([])
        with self.assertWarns(DeprecationWarning) as warned:
            old()
        self.assertIn("slug", str(warned.warning))
        self.assertEqual(warned.filename, __file__)

    def test_failing_by_hand(self):
        if slug("a") != "a":
            self.fail("not a")
        if slug("a") == "b":
            self.skipTest("cannot be")
        try:
            check(0)
        except AssertionError:
            return
        self.fail("nothing was raised")

    @unittest.expectedFailure
    def test_expected_to_fail(self):
        self.assertEqual(slug("a"), "b")

    @unittest.skip("never")
    def test_skipped(self):
        self.fail("run")

    def test_logs(self):
        with self.assertLogs("oddities", logging.INFO) as logs:
            logging.getLogger("oddities").info(slug("A"))
        self.assertEqual(logs.output, ["INFO:oddities:a"])


class LaterTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.assertEqual(await later(1), 1)

    async def test_later(self):
        self.assertEqual(await later("x"), "x")
        self.assertEqual(await asyncio.gather(later(1), later(2)), [1, 2])
        with self.assertRaises(TypeError):
            await later()
        assert await later(3) == 3, "awaited"
