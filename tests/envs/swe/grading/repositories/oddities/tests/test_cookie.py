# -*- coding: utf-8 -*-
"""Grüße."""
from oddities import slug


def test_cookie():
	assert slug("über") == "ber"; assert slug("A") \
		== "a"


def test_one_line(): assert slug("B") == "b"
