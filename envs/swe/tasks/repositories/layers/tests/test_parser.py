import unittest

from layers import SettingsSyntaxError, parse


class ParseTest(unittest.TestCase):
    def test_sections_and_names(self):
        self.assertEqual(parse("top = 1\n[Server]\nport = 80"), {"top": "1", "server.port": "80"})

    def test_a_value_may_hold_the_sign(self):
        self.assertEqual(parse("query = a=1&b=2"), {"query": "a=1&b=2"})
        text = "path = C:=D=\nsum=1+1==2\nquoted = 'x=y'"
        self.assertEqual(parse(text), {"path": "C:=D=", "sum": "1+1==2", "quoted": "x=y"})

    def test_comments_and_empty_lines(self):
        self.assertEqual(parse("# one\n\n; two\na = 1 # not a comment"), {"a": "1 # not a comment"})

    def test_quotes_keep_blanks(self):
        self.assertEqual(parse("a = ' x '\nb = \"\"\nc = 'x\""), {"a": " x ", "b": "", "c": "'x\""})

    def test_a_lone_quote_is_a_value(self):
        self.assertEqual(parse("a = '"), {"a": "'"})

    def test_an_empty_value(self):
        self.assertEqual(parse("a ="), {"a": ""})

    def test_continued_lines(self):
        self.assertEqual(parse("a = 1\n  2\n  # comment\n  3"), {"a": "1\n2\n3"})

    def test_nothing_to_continue(self):
        for text in ("  x = 1", "a = 1\n\n  x", "[s]\n  x"):
            with self.assertRaisesRegex(SettingsSyntaxError, "nothing to continue"):
                parse(text)

    def test_an_error_has_its_line(self):
        with self.assertRaises(SettingsSyntaxError) as caught:
            parse("a = 1\n\nnonsense\n")
        self.assertEqual(caught.exception.line, 3)

    def test_a_section_without_its_end(self):
        with self.assertRaisesRegex(SettingsSyntaxError, "line 1: .*bracket"):
            parse("[server")
