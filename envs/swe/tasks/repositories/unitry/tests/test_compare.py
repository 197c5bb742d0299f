import unittest

from unitry import IncompatibleUnits, Quantity


class CompareTest(unittest.TestCase):
    def test_equal_in_other_units(self):
        self.assertEqual(Quantity(1, "km"), Quantity(1000, "m"))
        self.assertEqual(Quantity(0.1, "m") + Quantity(0.2, "m"), Quantity(30, "cm"))
        self.assertNotEqual(Quantity(1, "km"), Quantity(1, "m"))

    def test_different_dimensions_are_unequal(self):
        self.assertNotEqual(Quantity(1, "m"), Quantity(1, "s"))
        self.assertNotEqual(Quantity(1, "m"), 1)

    def test_order_by_size_whatever_the_unit(self):
        self.assertLess(Quantity(900, "m"), Quantity(1, "km"))
        self.assertGreater(Quantity(2, "mi"), Quantity(3, "km"))
        lengths = [Quantity(1, "mi"), Quantity(1, "m"), Quantity(1, "km")]
        self.assertEqual([str(length) for length in sorted(lengths)], ["1 m", "1 km", "1 mi"])
        texts = ["5 cm", "3 m", "2 km", "40 mm", "0.1 mi", "7 m"]
        ordered = sorted(Quantity.parse(text) for text in texts)
        self.assertEqual([str(length) for length in ordered], ["40 mm", "5 cm", "3 m", "7 m", "0.1 mi", "2 km"])

    def test_order_at_equality(self):
        self.assertLessEqual(Quantity(1, "km"), Quantity(1000, "m"))
        self.assertFalse(Quantity(1, "km") < Quantity(1000, "m"))

    def test_different_dimensions_have_no_order(self):
        with self.assertRaises(IncompatibleUnits):
            Quantity(1, "m") < Quantity(1, "s")

    def test_equal_quantities_have_equal_hashes(self):
        self.assertEqual(len({Quantity(1, "km"), Quantity(1000, "m")}), 1)
