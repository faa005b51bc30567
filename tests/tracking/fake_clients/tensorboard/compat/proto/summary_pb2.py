"""Summaries as dictionaries."""

from __future__ import annotations


class Summary(dict):
    Value = dict
    Image = dict
