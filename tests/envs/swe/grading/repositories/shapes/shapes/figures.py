"""Figures in the plane."""

import enum
import math
import warnings
from fractions import Fraction


class Kind(enum.Enum):
    ROUND = "round"
    CORNERED = "cornered"


class Figure:
    """What all figures can."""

    kind = Kind.CORNERED

    def area(self):
        raise NotImplementedError

    def scaled(self, factor):
        """A figure of the same kind, `factor` times as large in each direction."""
        raise NotImplementedError

    def surface(self):
        """Use area."""
        warnings.warn("surface() is area() now", DeprecationWarning, stacklevel=2)
        return self.area()


class Rectangle(Figure):
    """From (left, low) to (right, high), whatever the order in which the corners are given."""

    def __init__(self, left, low, right, high):
        self.left, self.right = min(left, right), max(left, right)
        self.low, self.high = min(low, high), max(low, high)

    def corners(self):
        return (self.left, self.low, self.right, self.high)

    def area(self):
        return (self.right - self.left) * (self.high - self.low)

    def scaled(self, factor):
        return type(self)(*(corner * factor for corner in self.corners()))

    def __and__(self, other):
        """What both cover, None where that is nothing."""
        left, right = max(self.left, other.left), min(self.right, other.right)
        low, high = max(self.low, other.low), min(self.high, other.high)
        if left >= right or low >= high:
            return None
        return Rectangle(left, low, right, high)

    def __contains__(self, point):
        x, y = point
        return self.left <= x <= self.right and self.low <= y <= self.high

    def __eq__(self, other):
        if not isinstance(other, Rectangle):
            return NotImplemented
        return self.corners() == other.corners()

    def __hash__(self):
        return hash(self.corners())

    def __repr__(self):
        return "Rectangle({}, {}, {}, {})".format(*self.corners())

    def ratio(self):
        """Width over height, exactly."""
        return Fraction(self.right - self.left, self.high - self.low)


class Circle(Figure):
    """By its middle and radius."""

    kind = Kind.ROUND

    def __init__(self, x, y, radius):
        self.x, self.y, self.radius = x, y, radius

    def area(self):
        return math.pi * self.radius**2

    def scaled(self, factor):
        return Circle(self.x * factor, self.y * factor, self.radius * factor)

    def __contains__(self, point):
        return math.dist((self.x, self.y), point) <= self.radius


def union(rectangles):
    """The area that rectangles cover together."""
    xs = sorted({x for each in rectangles for x in (each.left, each.right)})
    total = 0
    for left, right in zip(xs, xs[1:]):
        spans = sorted((each.low, each.high) for each in rectangles if each.left <= left and right <= each.right)
        reached = -math.inf
        for low, high in spans:
            total += (right - left) * max(high - max(low, reached), 0)
            reached = max(reached, high)
    return total
