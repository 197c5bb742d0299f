import unittest
from fractions import Fraction

from shapes import Circle, Figure, Rectangle, union
from shapes.figures import Kind


class FigureChecks:
    """Checks of all figures; a subclass says which."""

    def make(self):
        raise NotImplementedError

    def assertScales(self, figure, factor):
        self.assertAlmostEqual(figure.scaled(factor).area(), figure.area() * factor**2)

    def test_scaling(self):
        for factor in (1, 2, 0.5, 10):
            with self.subTest(factor=factor):
                self.assertScales(self.make(), factor)

    def test_a_figure_of_the_same_kind(self):
        figure = self.make()
        self.assertIsInstance(figure.scaled(2), type(figure))
        self.assertIs(figure.scaled(2).kind, figure.kind)
        self.assertIsInstance(figure, Figure)

    def test_the_old_name_warns(self):
        with self.assertWarnsRegex(DeprecationWarning, "area"):
            surface = self.make().surface()
        self.assertEqual(surface, self.make().area())


class CircleTest(FigureChecks, unittest.TestCase):
    def make(self):
        return Circle(0, 0, 2)

    def test_points(self):
        circle = self.make()
        self.assertIn((1, 1), circle)
        self.assertNotIn((2, 2), circle)
        self.assertAlmostEqual(circle.area(), 12.566, places=3)
        self.assertEqual(circle.kind, Kind.ROUND)


class RectangleTest(FigureChecks, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.unit = Rectangle(0, 0, 1, 1)

    def make(self):
        return Rectangle(1, 1, 4, 3)

    def test_corners_in_any_order(self):
        self.assertEqual(Rectangle(4, 3, 1, 1), self.make())
        self.assertEqual(hash(Rectangle(4, 3, 1, 1)), hash(self.make()))
        self.assertNotEqual(self.unit, self.make())
        self.assertNotEqual(self.unit, (0, 0, 1, 1))
        self.assertEqual(repr(Rectangle(4, 3, 1, 1)), "Rectangle(1, 1, 4, 3)")

    def test_what_both_cover(self):
        self.assertEqual(self.make() & Rectangle(3, 2, 9, 9), Rectangle(3, 2, 4, 3))
        self.assertEqual(self.unit & self.unit, self.unit)

    def test_nothing_in_common(self):
        self.assertIsNone(self.unit & Rectangle(5, 5, 6, 6))
        self.assertIsNone(self.unit & Rectangle(1, 0, 2, 1), "touching is not covering")
        self.assertIsNone(Rectangle(0, 0, 9, 1) & Rectangle(0, 1, 9, 2))

    def test_points(self):
        for point, inside in (((0, 0), True), ((1, 1), True), ((1.5, 0), False)):
            with self.subTest(point):
                self.assertEqual(point in self.unit, inside)

    def test_the_ratio_is_exact(self):
        self.assertEqual(self.make().ratio(), Fraction(3, 2))
        self.assertRaises(ZeroDivisionError, Rectangle(0, 0, 1, 0).ratio)
        with self.assertRaisesRegex(ZeroDivisionError, r"Fraction\("):
            Rectangle(0, 0, 5, 0).ratio()

    def test_union(self):
        self.assertEqual(union([self.unit, self.unit]), 1)
        self.assertEqual(union([Rectangle(0, 0, 2, 2), Rectangle(1, 1, 3, 3)]), 7)
        self.assertEqual(union([]), 0)
        self.assertLessEqual(union([self.unit, self.make()]), self.unit.area() + self.make().area())


if __name__ == "__main__":
    unittest.main()
