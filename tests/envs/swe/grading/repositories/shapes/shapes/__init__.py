"""Rectangles and circles."""

from shapes.figures import Circle, Figure, Rectangle, union

__all__ = ["Circle", "Figure", "Rectangle", "union"]
