"""Just enough GraphQL to answer a query from nested Python values: fields, arguments, fragments,
@include and @skip.
"""

from __future__ import annotations

import re
from typing import Any

TOKEN = re.compile(r'\.\.\.|[A-Za-z_]\w*|\$\w+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|[{}()\[\]:!=@]')


class Query:
    """A parsed document; `answer(roots, variables)` selects from the root values what it asks for."""

    def __init__(self, text: str) -> None:
        self._tokens = TOKEN.findall(re.sub(r"#.*", "", text))
        self._place = 0
        self.name, self.defaults = "", {}
        self._fragments: dict[str, list[Any]] = {}
        self._selection: list[Any] = []
        while self._place < len(self._tokens):
            self._definition()

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self, expected: str | None = None) -> str:
        token = self._peek()
        if expected is not None and token != expected:
            raise ValueError(f"expected {expected!r}, found {token!r}")
        self._place += 1
        return token

    def _definition(self) -> None:
        if self._peek() == "{":
            self._selection = self._select()
            return
        if self._next() == "fragment":
            name = self._next()
            self._next("on")
            self._next()
            self._fragments[name] = self._select()
            return
        self.name = self._next() if self._peek() not in "({" else ""
        if self._peek() == "(":
            self._variables()
        self._selection = self._select()

    def _variables(self) -> None:
        self._next("(")
        while self._peek() != ")":
            name = self._next()[1:]
            self._next(":")
            while not self._peek().startswith("$") and self._peek() not in (")", "="):
                self._next()
            if self._peek() == "=":
                self._next()
                self.defaults[name] = self._value()
        self._next(")")

    def _select(self) -> list[Any]:
        self._next("{")
        chosen = []
        while self._peek() != "}":
            if self._peek() == "...":
                self._next()
                if self._peek() == "on":
                    self._next()
                    kind = self._next()
                    chosen.append(("inline", kind, self._select()))
                else:
                    chosen.append(("spread", self._next(), None))
                continue
            alias = name = self._next()
            if self._peek() == ":":
                self._next()
                name = self._next()
            arguments = self._arguments() if self._peek() == "(" else {}
            conditions = []
            while self._peek() == "@":
                self._next()
                conditions.append((self._next(), self._arguments()["if"]))
            chosen.append(
                (
                    "field",
                    alias,
                    (name, arguments, conditions, self._select() if self._peek() == "{" else None),
                )
            )
        self._next("}")
        return chosen

    def _arguments(self) -> dict[str, Any]:
        self._next("(")
        arguments = {}
        while self._peek() != ")":
            name = self._next()
            self._next(":")
            arguments[name] = self._value()
        self._next(")")
        return arguments

    def _value(self) -> Any:
        token = self._next()
        if token == "{":
            return self._pairs()
        if token == "[":
            items = []
            while self._peek() != "]":
                items.append(self._value())
            self._next("]")
            return items
        if token.startswith("$"):
            return ("variable", token[1:])
        if token.startswith('"'):
            return token[1:-1]
        if token in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[token]
        return float(token) if re.fullmatch(r"-?\d+(\.\d+)?", token) else token

    def _pairs(self) -> dict[str, Any]:
        pairs = {}
        while self._peek() != "}":
            name = self._next()
            self._next(":")
            pairs[name] = self._value()
        self._next("}")
        return pairs

    def answer(self, roots: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        known = self.defaults | {
            name: value for name, value in variables.items() if value is not None
        }

        def filled(value: Any) -> Any:
            if isinstance(value, tuple):
                return known.get(value[1])
            if isinstance(value, dict):
                return {name: filled(inner) for name, inner in value.items()}
            return [filled(inner) for inner in value] if isinstance(value, list) else value

        def pick(value: Any, selection: list[Any]) -> Any:
            if value is None or isinstance(value, list):
                return None if value is None else [pick(inner, selection) for inner in value]
            picked: dict[str, Any] = {}
            for kind, label, rest in selection:
                if kind == "spread":
                    picked |= pick(value, self._fragments[label])
                elif kind == "inline":
                    picked |= pick(value, rest) if value.get("__typename") == label else {}
                else:
                    name, arguments, conditions, inner = rest
                    if any(
                        bool(filled(condition)) is (what == "skip")
                        for what, condition in conditions
                    ):
                        continue
                    found = value.get(name)
                    found = found(**filled(arguments)) if callable(found) else found
                    picked[label] = pick(found, inner) if inner else found
            return picked

        return pick(roots, self._selection)
