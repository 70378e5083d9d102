"""Where things stand in a policy file: line numbers, from 1, of its YAML."""

from __future__ import annotations

import yaml

#: Keys and positions from the top: ``("principals", 0, "department")``.
Where = tuple[str | int, ...]


class Lines:
    """The lines of every key and element of a YAML document.

    Raises:
        yaml.YAMLError: ``text`` is not YAML.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Where, int] = {}
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            self._walk(node, (), node.start_mark.line)

    def _walk(self, node: yaml.Node, where: Where, line: int) -> None:
        self._lines[where] = line + 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._walk(value, (*where, str(key.value)), key.start_mark.line)
        elif isinstance(node, yaml.SequenceNode):
            for at, value in enumerate(node.value):
                self._walk(value, (*where, at), value.start_mark.line)

    def of(self, *where: str | int) -> int:
        """The line of ``where``, or of the nearest thing around it."""
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 1)
