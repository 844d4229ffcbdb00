"""Tests of uag; a package so that helpers can be imported as `tests.…`."""
